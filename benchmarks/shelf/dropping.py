"""A server that reads what is sent to it and keeps nothing: what uvicorn and the client alone take for an upload."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


async def drop(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application that answers once the body has come."""
    async for _ in Request(scope, receive).stream():
        pass
    await Response()(scope, receive, send)


@contextmanager
def dropping() -> Iterator[str]:
    """It in a process of its own, with the same reader of HTTP as a server of ours; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", __name__, str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    uvicorn.run(drop, fd=int(sys.argv[1]), http="h11", lifespan="off", log_level="warning")
