"""Tests the papers' claims on a language model: the list of cells, how to run one, and the results (`lm_adapters`)."""
