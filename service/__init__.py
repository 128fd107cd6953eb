"""The server over the registry: HTTP, the engine, jobs, keys and settings."""
