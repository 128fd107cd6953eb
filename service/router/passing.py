"""Passing one request to one replica, and its answer back as it comes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import httpx2

from registry.errors import InvalidParameter
from service.router.call import Call
from service.router.fleet import Member
from service.router.headers import to_client, to_replica

TIMEOUTS = {"connect": 2.0, "pool": 2.0, "write": 60.0, "read": None}
"""Seconds. How long an answer takes is the replica's affair: one that has stopped beating is given up (`fleet`)."""
_TIMES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
NOTICED = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TIMES.items() if hasattr(socket, name)),
)
"""Of a connection: a machine that is gone without a word is noticed in 20 seconds, though no answer was due."""
IDLE_SECONDS = 4.0
"""How long a connection to a replica is kept that nobody uses: the replica closes one after five."""
KEPT_CONNECTIONS = 256
MOST_HELD = 1024 * 1024
"""Bytes of a stream that are held until an event is whole."""
EVENT_END = b"\n\n"
REFUSED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Lost(Exception):  # no error that people see: the router says what came of it
    """A replica took no connection (`refused`), or was gone before its answer was whole."""

    def __init__(self, *, refused: bool) -> None:
        super().__init__("a replica was lost")
        self.refused = refused


class Passage:
    """The connections of a router to its replicas: no cookie, redirect or proxy of the environment is followed."""

    def __init__(self) -> None:
        limits = httpx2.Limits(
            max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=IDLE_SECONDS
        )
        self._transport = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False, socket_options=NOTICED)

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def take(self, call: Call, member: Member, *, leaves: Callable[[], Awaitable[bool]]) -> None:
        """Have a replica answer a request; raises InvalidParameter where it cannot be handed on.

        Raises Lost where the replica is, with `call.status` set where some of the answer was sent. An answer
        that the replica cannot give now (503) counts as none where it `leaves` and another may be asked.
        """
        with member.waiting(counts=call.is_inference) as scope:
            try:
                response = await self._transport.handle_async_request(_request(call, member))
                try:
                    if response.status_code == 503 and call.is_repeatable and await leaves():
                        raise Lost(refused=False)
                    await _answer(call, response, member)
                finally:
                    with anyio.CancelScope(shield=True):
                        await response.aclose()
            except httpx2.LocalProtocolError as error:  # what came cannot be sent on: no fault of the replica
                raise InvalidParameter("The request cannot be handed on: its head and its body disagree.") from error
            except httpx2.TransportError as error:
                raise Lost(refused=isinstance(error, REFUSED)) from error
        if scope.cancelled_caught:  # it has missed its beats
            raise Lost(refused=False)


def _request(call: Call, member: Member) -> httpx2.Request:
    """The request as the replica gets it: the same path, query, headers and body, byte by byte."""
    scope, held = call.scope, call.gathered
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    # not the bytes: httpx2 keeps what it is given for as long as the answer takes
    body = call.body() if held is None and call.has_body else call.held() if held else None
    headers = to_replica(scope, call.request_id, length=None if held is None else len(held))
    extensions = {"target": target, "timeout": TIMEOUTS}
    return httpx2.Request(
        scope["method"], str(member.row.url), headers=headers, content=body, extensions=extensions
    )  # fmt: skip


async def _answer(call: Call, response: httpx2.Response, member: Member) -> None:
    """Send an answer on as it comes. Of inference nothing is sent before the first piece of the body is there.

    Who gave it is not said of inference that was refused: by that one could tell an adapter that one may not see from
    one that does not exist.
    """
    pieces = response.aiter_raw()
    first = await anext(pieces, b"") if call.is_inference else b""
    shown = not call.is_inference or response.status_code < 400
    headers = to_client(response.headers.raw, member.row.id if shown else None)
    call.streams = response.headers.get("content-type", "").startswith("text/event-stream")
    call.begin(response.status_code)
    await call.send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    async for piece in _whole_events(first, pieces) if call.streams else _all(first, pieces):
        await call.send({"type": "http.response.body", "body": piece, "more_body": True})
    await call.send({"type": "http.response.body", "body": b"", "more_body": False})


async def _all(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in pieces:
        yield piece


async def _whole_events(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces that end where an event does, so that an error can follow any of them."""
    held = b""
    async for piece in _all(first, pieces):
        held += piece
        end = held.rfind(EVENT_END) + len(EVENT_END)
        if end >= len(EVENT_END) or len(held) > MOST_HELD:
            end = end if end >= len(EVENT_END) else len(held)
            yield held[:end]
            held = held[end:]
    if held:
        yield held
