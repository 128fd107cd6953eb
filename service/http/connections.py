"""The connections of a server: how many there are at once, how long each may keep it waiting, and which give way.

uvicorn waits without end for a client that has connected, or has sent half of its headers, and takes connections until
the process can open no more files, its own blobs included. Here every connection without an answer under way has a
deadline, and so has one whose client takes nothing of its answer; there are never more than `most`, and a newcomer
beyond it takes the place of the one that has kept the server waiting the longest. Bodies that stop half way are the
affair of `bodies`. Used by `soup serve`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from registry.errors import TooSlow
from service.http import problems
from service.http.security.places import most_connections
from service.settings import Settings

GRACE_SECONDS = 5
"""How long running answers have once a signal has come; jobs go back to the queue meanwhile."""
ACCEPTED_AT_ONCE = 16
"""Connections taken in one round of the event loop: some rounds pass before those beyond `most` are closed again."""
LEAST_TAKEN = 16 * 1024
"""Bytes that a client has to take of an answer that waits for it, or all of it, to have the same time again."""
BACKLOG = 2048
"""Connections that the kernel holds until they are taken."""


class BoundedServer(uvicorn.Server):
    """uvicorn's server, on sockets that it is given. Its backlog is how many connections are taken at once, too."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and have the kernel hold more connections than are taken at once."""
        await super().startup(sockets)
        for one in sockets or ():
            if not self.should_exit:
                one.listen(BACKLOG)


def server_config(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Config:
    """How uvicorn serves `app`; `options` are more of its own."""

    class Connection(BoundedConnection):
        room = Connections(
            most=most_connections(settings), seconds=settings.header_seconds, answer_seconds=settings.answer_seconds
        )

    return uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **options,
    )


class Connections:
    """The connections of one server that it waits for, those first that it has waited for the longest."""

    def __init__(self, *, most: int, seconds: float, answer_seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.answer_seconds = answer_seconds
        self.waiting: dict[BoundedConnection, None] = {}
        """No answer is under way: nothing came yet, or half of the headers, or nothing since the last answer."""
        self.sending: dict[BoundedConnection, None] = {}
        """An answer is, and the body it needs is not whole."""

    def forget(self, one: BoundedConnection) -> None:
        """It is waited for no longer."""
        self.waiting.pop(one, None)
        self.sending.pop(one, None)

    def make_way(self, newcomer: BoundedConnection) -> None:
        """Close one connection for a newcomer: of those waited for the oldest, else the newcomer."""
        one = next(iter(self.waiting), None) or next(iter(self.sending), newcomer)
        self.forget(one)
        one.transport.abort()


class Taking:
    """The deadline of a client that is to take what waits for it of an answer, at least LEAST_TAKEN bytes each time.

    The connection of one that does not is closed, and so whoever serves it hears that it is gone.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._seconds = seconds
        self._loop = loop
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Wait for it from now on, where anything waits and nobody waits for it yet."""
        left = self._transport.get_write_buffer_size()
        if left and self._deadline is None:
            self._deadline = self._loop.call_later(self._seconds, self._look, left)

    def end(self) -> None:
        """Wait no longer."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self, before: int) -> None:
        self._deadline = None
        if before - self._transport.get_write_buffer_size() < min(before, LEAST_TAKEN):
            self._transport.abort()
        else:
            self.begin()


class BoundedConnection(H11Protocol):
    """uvicorn's connection, with a place among `room` and a deadline while the client has to do something."""

    room: ClassVar[Connections]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first request; where there are too many, one gives way."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._idle = False
        self._taking = Taking(transport, self.room.answer_seconds, self.loop)
        if len(self.connections) > self.room.most:
            self.room.make_way(self)
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        self._disarm()
        self._taking.end()
        self.room.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, which may begin or end a request."""
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        """Wait for the next request, or begin it where it is here already."""
        super().on_response_complete()
        self._taking.begin()
        self._settle()

    def pause_writing(self) -> None:
        """Too much of an answer waits for the client, and no more is made of it: the client has to take some."""
        super().pause_writing()
        self._taking.begin()

    def resume_writing(self) -> None:
        """It has taken what there was."""
        super().resume_writing()
        self._taking.end()

    def _settle(self) -> None:
        """Take the place that belongs to what the client owes; bytes alone put no deadline off."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm()
            self.room.forget(self)
            if not self.flow.write_paused:
                self._taking.end()  # what is left of an answer before it is looked at when this one is there
            if self.cycle.more_body:
                self.room.sending[self] = None
            return
        idle = self.cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self._deadline is None or idle != self._idle:
            self._disarm()
            self.room.forget(self)
            self.room.waiting[self] = None
            self._idle = idle
            seconds = self.timeout_keep_alive if idle else self.room.seconds
            self._deadline = self.loop.call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Close: without a word where nothing was begun, or an answer has been given, else with 408."""
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._say(
                TooSlow(
                    f"The headers of the request did not come within {self.room.seconds:g} seconds "
                    "(SOUP_HEADER_SECONDS)."
                )
            )
        self.transport.close()
        self._taking.begin()

    def _say(self, error: TooSlow) -> None:
        answer = problems.response_of(error)
        start = h11.Response(
            status_code=answer.status_code, headers=answer.raw_headers, reason=STATUS_PHRASES[answer.status_code]
        )
        for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
