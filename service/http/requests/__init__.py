"""Read requests: bodies and their limits, paging, preconditions, and how long to wait for a job.

Nothing here knows what a route does with what it read.
"""
