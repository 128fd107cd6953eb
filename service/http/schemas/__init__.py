"""Bodies of requests and answers, one file a file of `routes`. What is stored as well is in `registry.spec`."""
