"""Replicas of a few lines, which do what no real server can be told to do: to break off, to hang, to say 429."""

from __future__ import annotations

import hashlib
import json
import socketserver
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from starlette.types import Receive, Scope, Send

from registry.catalogue import Database
from registry.catalogue.replica_rows import NewReplica, ReplicaLoad
from service.router.app import Router
from service.router.ranking import ranked
from service.settings import Settings
from tests.registry.catalogue_rows import add, new_database
from tests.service.cluster import free_port
from tests.service.servers import serving

SECRET = "sk-soup-" + "r" * 43
Says = Callable[["Scripted", Scope, Receive, Send], Awaitable[None]]


@dataclass
class Scripted:
    """A replica that does what `says` does, and remembers what it was asked."""

    id: str
    says: Says
    seen: list[tuple[Scope, bytes]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away before its answer was whole."""
    released: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((scope, body))
        await self.says(self, scope, receive, send)

    def headers(self, index: int = -1) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.seen[index][0]["headers"]}


async def begin(send: Send, status: int = 200, *, kind: str = "application/json", **headers: str) -> None:
    raw = [(b"content-type", kind.encode())]
    raw += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def piece(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def tell(me: Scripted, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Say who answers."""
    await begin(send)
    await piece(send, json.dumps({"by": me.id}).encode())


async def break_off(_me: Scripted, _scope: Scope, _receive: Receive, _send: Send) -> None:
    """Take the request, and close the connection without a word: it has a server of its own, which does."""


async def listen_nowhere(_me: Scripted, _scope: Scope, _receive: Receive, _send: Send) -> None:
    """Take no connection: none listens at its address."""


async def hang(me: Scripted, _scope: Scope, receive: Receive, _send: Send) -> None:
    """Answer nothing for as long as anybody waits."""
    while (await receive())["type"] != "http.disconnect":
        pass
    me.gone.set()


async def stream_until_released(me: Scripted, _scope: Scope, receive: Receive, send: Send) -> None:
    """An event, and the next one when the test says so or the client goes away."""
    await begin(send, kind="text/event-stream; charset=utf-8")
    await piece(send, b'data: {"n": 1}\n\n', more=True)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        me.gone.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await to_thread.run_sync(_released_or_gone, me)
        await piece(send, b"data: [DONE]\n\n")
        tasks.cancel_scope.cancel()


def _released_or_gone(me: Scripted) -> None:
    while not (me.released.wait(0.005) or me.gone.is_set()):
        pass


def stream_cut(*pieces: bytes) -> Says:
    """These pieces of a stream, and then the connection closes."""

    async def says(_me: Scripted, _scope: Scope, _receive: Receive, send: Send) -> None:
        await begin(send, kind="text/event-stream")
        for one in pieces:
            await piece(send, one, more=True)

    return says


@dataclass
class Routed:
    """A router before scripted replicas, on a database with one key and one adapter for each of their orders."""

    url: str
    router: Router
    database: Database
    replicas: list[Scripted]

    def model(self, *order: str) -> str:
        """An adapter whose replicas are ranked so."""
        for number in range(1000):
            name = f"acme/a{number}"
            with self.database.write() as catalogue:
                row = add(catalogue, name)
            if tuple(ranked(f"tiny\n{row.digest}", [one.id for one in self.replicas]))[: len(order)] == order:
                return name
        raise AssertionError("no adapter is ranked so")


@contextmanager
def breaking_off(replica: Scripted) -> Iterator[int]:
    """A server that reads a request and closes the connection; gives the port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length, line = 0, self.rfile.readline()
            while (line := self.rfile.readline().lower()) not in (b"\r\n", b""):
                length = int(line.split()[1]) if line.startswith(b"content-length:") else length
            replica.seen.append(({}, self.rfile.read(length)))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def port_of(stack: ExitStack, replica: Scripted, settings: Settings) -> int:
    """Where a replica does what it is told to do."""
    if replica.says is listen_nowhere:
        return free_port()
    server = breaking_off(replica) if replica.says is break_off else serving(replica, settings)
    return stack.enter_context(server)


@contextmanager
def routed(folder: Path, *says: Says, beat: float = 60.0, **settings: Any) -> Iterator[Routed]:
    """Replicas a, b, ... that do what they are told, and a router that has found them."""
    with ExitStack() as stack:
        folder.mkdir(exist_ok=True)
        database = new_database(folder)
        stack.callback(database.close)
        with database.write() as catalogue:
            hashed = hashlib.sha256(SECRET.encode()).hexdigest()
            catalogue.keys.add("k", hashed, namespaces=None, scopes={"admin"}, prefix="sk-soup-rrrr")
        chosen = Settings(data=folder / "data", **settings)
        replicas = [Scripted("abcdef"[number], one) for number, one in enumerate(says)]
        for one in replicas:
            port = port_of(stack, one, chosen)
            new = NewReplica(
                id=one.id, role="all", url=f"http://127.0.0.1:{port}", bases={"tiny": "sha256:1"}, places=16,
                bank_bytes=1, beat=timedelta(seconds=beat),
            )  # fmt: skip
            with database.write() as catalogue:
                catalogue.replicas.join(new, ReplicaLoad(0, 0, 0))
        router = Router(database, chosen)
        port = stack.enter_context(serving(router, chosen, lifespan="on"))
        yield Routed(f"http://127.0.0.1:{port}", router, database, replicas)
