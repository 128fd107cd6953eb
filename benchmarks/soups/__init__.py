"""The parts of `benchmarks.adaptersoup`: its setting, its cells, and what is counted of them."""
