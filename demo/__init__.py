"""The main job as one command: train or take adapters, push, select, average, evaluate, generate (`make demo`)."""
