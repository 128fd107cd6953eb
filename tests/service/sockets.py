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


def read_until(one: socket.socket, text: bytes) -> bytes:
    """What comes until this text is in it; the server does not close before."""
    found = b""
    while text not in found:
        piece = one.recv(65536)
        assert piece, found
        found += piece
    return found
