"""A request put straight to an application, piece by piece; afterwards what it answered and how much it read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from starlette.types import Message


class Asked:
    """One request; `headers` are named with underscores."""

    def __init__(self, pieces: Iterator[bytes], *, path: str = "/large", method: str = "POST", **headers: str) -> None:
        self.pieces = pieces
        self.read = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        sent = {"content_type": "application/json", **headers}
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
        }

    async def receive(self) -> Message:
        piece = next(self.pieces, None)
        if piece is None:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")

    async def of(self, app: FastAPI) -> Asked:
        await app(self.scope, self.receive, self.send)
        return self
