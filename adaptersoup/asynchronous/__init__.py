"""The asynchronous client with typed values, from which `docs.sync_clients` generates `adaptersoup.synchronous`."""
