"""The parts of `benchmarks.single_domain`: training, scoring, choosing, and tables."""
