"""Reads from a real socket, for tests that speak to a server without a client of HTTP."""

from __future__ import annotations

import socket


def until_closed(connection: socket.socket) -> bytes:
    """All that comes before the server closes; a reset is an end, too."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def read_until(connection: socket.socket, text: bytes) -> bytes:
    """All that comes until this text is in it; the server does not close before."""
    received = b""
    while text not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received
