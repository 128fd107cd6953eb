"""Generated from `asynchronous` by `python -m docs.sync_clients`: change those modules, and run it."""
