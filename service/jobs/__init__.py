"""Queued jobs: the runner of the queue, and one module for each kind of job."""
