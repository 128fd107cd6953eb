"""Verbs that remove adapters, soups and selectors: purge on request, collection of what is unused.

Called by routes and by the server's periodic collection. Nothing here chooses, mixes or scores.
"""
