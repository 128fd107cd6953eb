"""Serve the files of adapters: ranges, signed links, revisions for Hugging Face clients, CSV rows.

Nothing here reads what is in a file.
"""
