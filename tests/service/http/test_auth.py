"""Strangers under no_auth: other hosts, other origins and proxies are refused."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from registry.errors import Forbidden
from service.http.auth import check_local

ALLOWED = ("localhost", "127.0.0.1", "::1")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost"},
        {"host": "localhost:8000"},
        {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"},
        {"host": "[::1]:8000"},
        {"host": "LOCALHOST:1"},
        {"host": "127.0.0.1:8000", "connection": "close", "user-agent": "from elsewhere, by a proxy that says nothing"},
    ],
)
def test_local_requests_pass(headers: dict[str, str]) -> None:
    """And what looks like one: SECURITY.md says that no proxy may stand before a server without keys."""
    check_local(Headers(headers), allowed=ALLOWED)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "evil.example"},
        {"host": "localhost.evil.example"},
        {"host": "localhost@evil.example"},
        {"host": "evil.example:localhost"},
        {"host": "[::1"},
        {"host": "127.0.0.1.nip.io"},
        {"host": "localhost", "origin": "http://evil.example"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost:8000", "origin": "http://localhost:9000"},
        {"host": "localhost", "origin": ""},
        {"host": "localhost", "x-forwarded-for": "10.0.0.1"},
        {"host": "localhost", "forwarded": "for=10.0.0.1"},
        {"host": "localhost", "x-real-ip": "10.0.0.1"},
        {"host": "localhost", "via": "1.1 proxy"},
    ],
)
def test_everybody_else_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        check_local(Headers(headers), allowed=ALLOWED)
