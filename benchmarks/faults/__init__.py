"""What `benchmarks.trust` does to a server: kills, floods, lost updates, and headers made to harm."""
