"""uvicorn with a bounded number of connections, and deadlines for clients that send or read too slowly.

uvicorn waits without limit for a client that has connected or has sent half of its headers. It also accepts connections
until the process can open no more files, its own blobs included. Here every connection without an answer under way has
a deadline, and so has one whose client does not read its answer. There are never more than `most` connections: a new
one beyond that closes the one that has kept the server waiting the longest. `bodies` has the deadlines of request
bodies. Used by `soup serve`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from registry.errors import Invalid, SoupError, TooSlow
from service.http import problems
from service.http.security.answer_limits import most_connections
from service.settings import Settings

log = logging.getLogger("service.request")

GRACE_SECONDS = 5
"""Seconds for running answers to end after a signal; jobs go back to the queue meanwhile."""
ACCEPTED_AT_ONCE = 16
"""Connections accepted in one round of the event loop; those beyond `most` are closed a few rounds later."""
LEAST_READ = 16 * 1024
"""Bytes of a buffered answer that a client has to read, unless it reads all of it, to get another deadline."""
BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""


class BoundedServer(uvicorn.Server):
    """uvicorn's server with a longer queue of connections in the kernel.

    uvicorn's `backlog` is also the number of connections that asyncio accepts at once, which should be small.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on `sockets` with BACKLOG as the length of the kernel's queue."""
        await super().startup(sockets)
        for listener in sockets or ():
            if not self.should_exit:
                listener.listen(BACKLOG)


def server_config(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for `app`; `options` are passed on to it."""

    class Connection(BoundedConnection):
        queue = ConnectionQueue(
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


class ConnectionQueue:
    """The connections of one server whose clients it waits for, in the order of waiting, longest first."""

    def __init__(self, *, most: int, seconds: float, answer_seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.answer_seconds = answer_seconds
        self.waiting: dict[BoundedConnection, None] = {}
        """Connections without an answer under way: no request, or not all of its headers, has arrived."""
        self.sending: dict[BoundedConnection, None] = {}
        """Connections with an answer under way whose request body has not arrived completely."""

    def forget(self, connection: BoundedConnection) -> None:
        """Remove a connection that the server no longer waits for."""
        self.waiting.pop(connection, None)
        self.sending.pop(connection, None)

    def make_way(self, newcomer: BoundedConnection) -> None:
        """Close the connection that has been waited for the longest, or the newcomer if there is none."""
        oldest = next(iter(self.waiting), None) or next(iter(self.sending), newcomer)
        self.forget(oldest)
        oldest.transport.abort()


class ReadDeadline:
    """Deadline for a client to read at least LEAST_READ bytes of the answer buffered for it, renewed each time it does.

    If the client does not, its connection is closed, which ends the request as a disconnect.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._seconds = seconds
        self._loop = loop
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the deadline if bytes are buffered and it is not running."""
        buffered = self._transport.get_write_buffer_size()
        if buffered and self._deadline is None:
            self._deadline = self._loop.call_later(self._seconds, self._expire, buffered)

    def end(self) -> None:
        """Cancel the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self, buffered: int) -> None:
        """Close the connection unless the client has read enough of the `buffered` bytes."""
        self._deadline = None
        if buffered - self._transport.get_write_buffer_size() < min(buffered, LEAST_READ):
            self._transport.abort()
        else:
            self.begin()


class BoundedConnection(H11Protocol):
    """uvicorn's connection, listed in `queue` and with a deadline while the server waits for the client."""

    queue: ClassVar[ConnectionQueue]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first request; close the oldest waiting connection if there are too many."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._idle = False
        self._read_deadline = ReadDeadline(transport, self.queue.answer_seconds, self.loop)
        if len(self.connections) > self.queue.most:
            self.queue.make_way(self)
        self._update_deadlines()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        self._cancel_deadline()
        self._read_deadline.end()
        self.queue.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes, which may begin or complete a request."""
        super().data_received(data)
        self._update_deadlines()

    def on_response_complete(self) -> None:
        """Wait for the next request, or begin it if it has arrived already."""
        super().on_response_complete()
        self._read_deadline.begin()
        self._update_deadlines()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request, unless an answer has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send_error(Invalid(msg))
            self._close()
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Stop producing the answer and start the client's deadline to read it: the buffer is full."""
        super().pause_writing()
        self._read_deadline.begin()

    def resume_writing(self) -> None:
        """Continue the answer: the client has read the buffer."""
        super().resume_writing()
        self._read_deadline.end()

    def _update_deadlines(self) -> None:
        """List the connection by what the client has to do, with its deadline; bytes alone do not renew it."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
            self.queue.forget(self)
            if not self.flow.write_paused:
                self._read_deadline.end()  # the rest of the answer before is checked at the end of this one
            if self.cycle.more_body:
                self.queue.sending[self] = None
            return
        idle = self.cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self._deadline is None or idle != self._idle:
            self._cancel_deadline()
            self.queue.forget(self)
            self.queue.waiting[self] = None
            self._idle = idle
            seconds = self.timeout_keep_alive if idle else self.queue.seconds
            self._deadline = self.loop.call_later(seconds, self._expire)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Close the connection, with 408 if a request has begun to arrive."""
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            seconds = self.queue.seconds
            self._send_error(
                TooSlow(f"The headers of the request did not come within {seconds:g} seconds (SOUP_HEADER_SECONDS).")
            )
        self._close()

    def _close(self) -> None:
        """Close the connection when the client has read its answer."""
        self.transport.close()
        self._read_deadline.begin()

    def _send_error(self, error: SoupError) -> None:
        """Send and log an error of a request that does not reach the application."""
        request_id = uuid.uuid4().hex
        answer = problems.response_of(error, {"connection": "close", "x-request-id": request_id})
        log.info("request", extra={"fields": {"request_id": request_id, "status": answer.status_code}})
        start = h11.Response(
            status_code=answer.status_code, headers=answer.raw_headers, reason=STATUS_PHRASES[answer.status_code]
        )
        for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
