"""Serving on a socket until a signal comes, for `soup serve`."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from registry.errors import Unavailable

if TYPE_CHECKING:
    import uvicorn


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket, before anything slow is done; raises Unavailable where the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"{host} is not an address to listen on ({error}).") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen on {host} port {port} ({error.strerror}): stop the server that does, or take --port."
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL people use for a bound socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{host}:{port}"


def until_signal(
    config: uvicorn.Config, listener: socket.socket, *, ready: Callable[[], None],
    stopping: Callable[[], None],
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM; `stopping` is called once requests end.

    `ready` is called in a thread once requests are answered; what it raises ends the server and is raised here.
    """
    from service.http.connections import BoundedServer

    class Server(BoundedServer):
        problem: Exception | None = None

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stopping()
            await super().shutdown(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                threading.Thread(target=self.get_ready, name="ready", daemon=True).start()

        def get_ready(self) -> None:
            try:
                ready()
            except Exception as error:
                self.problem, self.should_exit = error, True

    # uvicorn raises the signal that stopped it once more; with the default handler that would end the process here,
    # before the runtime is stopped
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server = Server(config)
    server.run(sockets=[listener])
    if server.problem is not None:
        raise server.problem
