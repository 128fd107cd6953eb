"""The papers' claims on a language model: the list of cells, how one is run, and what comes of all (`lm_adapters`)."""
