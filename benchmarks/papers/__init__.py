"""Decides the claims of the adapter papers on a pretrained encoder (`make reproduce-papers`).

`claims.toml` was written before the first run: the claims, the settings, and the rule for verdicts. `variants` builds
what the claims compare, `cells` trains and scores one of it, `verdicts` reads the results.
"""
