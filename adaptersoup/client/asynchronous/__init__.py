"""The asynchronous client, from which `docs.sync_clients` generates `adaptersoup.client.synchronous`."""
