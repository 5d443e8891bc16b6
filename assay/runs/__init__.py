"""Runs as directories: what connects training, evaluation, evidence and report. Nothing below it knows of files."""
