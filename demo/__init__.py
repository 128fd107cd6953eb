"""The main job as one command (`make demo`): push adapters, fit, cook for novel domains, score, draw, generate."""
