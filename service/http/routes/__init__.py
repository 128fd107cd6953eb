"""One file a part of the HTTP interface, each with a `router`; it parses, calls and wraps, and imports no other route."""
