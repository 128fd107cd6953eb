"""Options of the HTTP client that sends requests to a server, and headers for its key and for proxies.

Used by `adaptersoup.client`. Knows no route, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx2

from registry.errors import InvalidParameter
from registry.names import LOOPBACK


def model_header(body: Mapping[str, Any] | None) -> dict[str, str]:
    """The header `x-soup-model` of a request whose body names a model; proxies hash it to choose a server."""
    model = (body or {}).get("model")
    return {"x-soup-model": quote(model[:200], safe="/@:", errors="replace")} if isinstance(model, str) else {}


def key_header(key: str | None) -> dict[str, str]:
    """The header `authorization` for a key, none without one; raises InvalidParameter, which does not repeat the key.

    White space around the key is removed, such as the line end of a file.
    """
    text = (key or "").strip()
    if not text.isascii() or not text.isprintable():
        raise InvalidParameter("The key holds characters a header cannot carry.", param="key")
    return {"authorization": f"Bearer {text}"} if text else {}


def connection_options(base_url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Arguments of an httpx2 client for a server; raises InvalidParameter for an invalid address or key."""
    url = _parsed_url(base_url)
    return {
        "base_url": str(url).rstrip("/"),
        "headers": {"user-agent": "adaptersoup-client", **key_header(api_key)},
        "timeout": httpx2.Timeout(timeout, connect=min(10.0, timeout)),
        "trust_env": url.host not in LOOPBACK,  # a proxy of the environment cannot reach this machine's loopback
    }


def _parsed_url(base_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError):
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        address = str(base_url).rpartition("@")[2]  # without a user's name and password
        raise InvalidParameter(f"{address!r} is not an address: write it as http://host:port.", param="url")
    if url.userinfo:  # it would replace the key
        raise InvalidParameter("The address of a server has no user and password: give it a key.", param="url")
    return url
