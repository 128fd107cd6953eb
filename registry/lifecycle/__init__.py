"""Verbs that change, retire, restore and purge stored adapters, and collect unused data.

Called by routes and by the server's periodic collection. Nothing here chooses, mixes or scores.
"""
