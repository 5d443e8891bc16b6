"""Evidence that a stranger can check offline: digests, a manifest, provenance, and what verifies them.

Only the standard library is used here, so that ``python -m assay.evidence DIR`` runs without torch or any other
package.
"""
