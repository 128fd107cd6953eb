"""A server for this process only: uvicorn in a thread, on a Unix socket that only this user may open."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import httpx2
import uvicorn
from starlette.types import ASGIApp

from registry.errors import Unavailable

GRACE_SECONDS = 1
"""Seconds that requests have to end once the server is closed."""


class _Server(uvicorn.Server):
    """uvicorn's server, which at shutdown also closes connections whose requests have not ended."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, then abort the open connections."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)


class LocalServer:
    """Serves an ASGI application from `start` until `close`; raises Unavailable if no socket can be made."""

    def __init__(self, app: ASGIApp) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="soup-")  # of this user alone (0700)
        self._path = str(Path(self._folder.name) / "socket")
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(self._path)
        except OSError as error:
            self._socket.close()
            self._folder.cleanup()
            raise Unavailable(
                f"No socket can be made in {self._folder.name} ({error}): set TMPDIR to another, short folder."
            ) from error
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="soup-store", daemon=True)

    def start(self) -> None:
        """Start serving, and return once the application has started; raises Unavailable if that fails."""
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
            if not self._thread.is_alive():
                raise Unavailable("The application failed at its start; the log says why.")

    def _run(self) -> None:
        with suppress(SystemExit):  # uvicorn exits if the application cannot start; `start` then raises
            self._server.run(sockets=[self._socket])

    def transport(self) -> httpx2.HTTPTransport:
        """A transport to this server for an HTTP client, without a limit on connections."""
        return httpx2.HTTPTransport(uds=self._path, limits=httpx2.Limits(max_connections=None))

    def close(self) -> None:
        """End the application and abort unfinished requests. A second call does nothing."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._folder.cleanup()
