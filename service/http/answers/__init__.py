"""What the inference and soup routes answer, built from results of the engine and the registry."""
