"""What is known: stored adapters, fitted selectors, recipes and the soups mixed from them.

Synchronous, without HTTP, environment or globals. `service` and `training` import it; it imports neither.
"""
