"""The asynchronous client, from which `docs.sync_clients` generates `service.client.synchronous`."""
