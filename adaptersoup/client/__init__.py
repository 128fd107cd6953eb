"""The Python client: calls to a server, without torch."""

from adaptersoup.client.client import SoupClient

__all__ = ["SoupClient"]
