"""Samples: the texts or vectors that represent a domain, cleaned, counted, embedded and recorded.

`draw` is shared with the client and imports the standard library only. Nothing here knows pools or selectors.
"""
