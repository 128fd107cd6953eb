"""Bodies of requests and answers, one module for each module of `routes`; `registry.spec` has those that are stored."""
