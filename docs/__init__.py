"""The documentation, and the generator of its parts that come from the code (`python -m docs.generate`)."""
