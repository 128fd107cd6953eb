"""Bodies of requests and answers, one file a part of the interface. What is stored as well is in `registry.spec`."""
