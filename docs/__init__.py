"""The documentation, and what regenerates the parts of it that come from the code (`python -m docs.generate`)."""
