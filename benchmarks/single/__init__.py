"""The parts of `benchmarks.single_domain`: what is trained, how it is scored, chosen and told."""
