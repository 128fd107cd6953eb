"""What `benchmarks.registry` measures: a catalogue of many adapters, pools that are fitted, pushes and refits."""
