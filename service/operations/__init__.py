"""Operate a data folder: lock and migrate it, back it up, restore it, check its blobs, copy them to another store.

Called by the runtime at its start and by commands for operators. Nothing here serves requests.
"""
