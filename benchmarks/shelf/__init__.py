"""The parts of `benchmarks.registry`: a catalogue of many adapters, fits of pools, pushes and refits."""
