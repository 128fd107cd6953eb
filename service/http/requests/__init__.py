"""Read requests: bodies and their limits, paging and preconditions.

Nothing here knows what a route does with what it read.
"""
