"""What `benchmarks.registry` measures: a catalogue of many adapters, uploads, pushes at once and refits."""
