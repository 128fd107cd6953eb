"""How the registry is reached and served: HTTP, the engine, jobs, the client and the command line."""
