"""One file a part of the HTTP interface, each with a `router`: it parses, calls, wraps, and imports no other route."""
