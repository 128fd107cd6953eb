"""Verbs that choose adapters of a pool for a sample: fit a selector over the pool, select with it, map its domains.

The algorithms are in `registry.selectors`; nothing here knows how soups are mixed.
"""
