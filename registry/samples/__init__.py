"""Samples: the texts or vectors that represent a domain, cleaned, counted, embedded and recorded.

`draw` is shared with the client. Nothing here knows pools or selectors.
"""
