"""Samples: the texts or vectors that stand for a domain, cleaned, counted, embedded and recorded.

`draw` is shared with the client and imports the standard library only. Nothing here knows pools or selectors.
"""
