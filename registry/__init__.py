"""Stored adapters, fitted selectors, recipes and the soups mixed from them, and the verbs that work on these.

Synchronous, without HTTP, environment or globals. `service` and `training` import it; it imports neither.
"""
