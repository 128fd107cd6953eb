"""Stored adapters, fitted selectors, recipes and soups, and the verbs that work on them.

Synchronous, without HTTP or settings; `tasks.ray_connection` alone reads the environment, Ray's own variables.
`service` and `training` import this package; it imports neither.
"""
