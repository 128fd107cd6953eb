"""Stored files, for all verbs: record them, remove them, and load adapters from them.

Must not know which verb asks. `files` stays without torch, for the process that fits selectors.
"""
