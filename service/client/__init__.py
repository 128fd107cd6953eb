"""The Python client: calls to a server, without torch."""

from service.client.client import SoupClient

__all__ = ["SoupClient"]
