"""Remove adapters, soups and selectors: purge on request, collect what nobody has used or named for some time.

Called by routes and by the server's periodic collection. Nothing here chooses, mixes or scores.
"""
