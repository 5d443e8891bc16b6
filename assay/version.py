"""The version of the package; a place of its own, so that every layer can say it."""

__version__ = "0.1.0"
