"""Verbs that change stored adapters and remove what is stored: purge on request, collection of what is unused.

Called by routes and by the server's periodic collection. Nothing here chooses, mixes or scores.
"""
