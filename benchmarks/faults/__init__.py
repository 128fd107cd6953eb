"""The faults of `benchmarks.trust`: kills, floods, lost updates, and malicious headers."""
