"""Losses that have a name: ours, and those of installed libraries. The modules that ``subjects.ADAPTERS`` names hold
``SUBJECTS``, a maker by name; the others are theirs.

A library is imported by its maker alone, never when this package is.
"""
