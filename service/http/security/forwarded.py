"""Read `X-Forwarded-Proto`, the one header of a proxy in front of the server that is believed."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope


def came_by_tls(scope: Scope) -> bool:
    """Return True if the client is known to use TLS; of several proxies the first is the one it connected to.

    A client that lies only makes its own cookies stricter and its own redirects wrong.
    """
    forwarded_proto = Headers(scope=scope).get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return scope.get("scheme") == "https" or forwarded_proto == "https"
