"""What a proxy in front says of a request: whether the client came by TLS. Nothing else of it is taken for true."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope


def came_by_tls(scope: Scope) -> bool:
    """Whether the client came by TLS, as far as is known; of several proxies the first is the one it spoke to.

    Whoever lies about it only makes their own cookies stricter, and sends but themselves elsewhere.
    """
    said = Headers(scope=scope).get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return scope.get("scheme") == "https" or said == "https"
