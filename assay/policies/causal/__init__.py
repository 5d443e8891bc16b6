"""Causal language models of Transformers: loaded, read in packed rows, drawn from, scored."""
