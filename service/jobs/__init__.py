"""Work that outlives its request: the runner of queued jobs, and what each kind of job does."""
