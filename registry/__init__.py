"""Stored adapters, fitted selectors, recipes and soups, and the verbs that work on them.

Synchronous, without HTTP, environment or globals. `service` and `training` import it; it imports neither.
"""
