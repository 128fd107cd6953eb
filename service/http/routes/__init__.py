"""One module per part of the HTTP interface; each exposes `router`. A route parses, calls, and wraps."""
