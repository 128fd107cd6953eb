"""The routes, one module for each group, with a `router`: they parse, call and wrap, and import no other route."""
