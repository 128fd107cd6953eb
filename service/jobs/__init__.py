"""Queued jobs: the runner of the queue, one module for each kind of job, and the probes that they and pushes take."""
