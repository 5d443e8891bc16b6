"""Losses that have a name: ours, and those of installed libraries. Each module holds ``SUBJECTS``, a maker by name.

A library is imported by its maker alone, never when this package is.
"""
