"""What a real socket brings, for tests that speak to a server without a client of HTTP."""

from __future__ import annotations

import socket


def until_closed(one: socket.socket) -> bytes:
    """All that comes before the server closes; a reset is an end, too."""
    found = b""
    try:
        while piece := one.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found
