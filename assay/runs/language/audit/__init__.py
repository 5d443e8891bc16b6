"""The audit of a run: its own steps, on a model small enough to enumerate."""
