"""Who may pass under no_auth; strangers are among tests/attacks."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

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
