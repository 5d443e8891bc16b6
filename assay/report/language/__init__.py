"""The report of a language run."""
