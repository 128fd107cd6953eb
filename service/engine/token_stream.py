"""The tokens of generate requests in an event loop, as they arrive from the engine's thread.

Used by the routes that stream, and by replicas on Ray. The engine's thread only hands values over, all tokens of a step
at once (`Outbox`), and the event loop only waits. Both share the interpreter's lock: work of either for a token delays
the next token.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError as TicketCancelled
from dataclasses import replace
from functools import partial
from typing import Any

from registry.errors import Unavailable
from service.engine.request import Delta, GenerateRequest, Generation
from service.engine.steps import Ticket
from service.engine.text_calls import EngineCalls


class Outbox:
    """Queue of tokens from the engine's thread for the streams of one event loop, delivered together once a step.

    Waking an event loop is a system call that also hands over the interpreter's lock, too costly for every token.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: deque[tuple[TokenStream, int, Delta | None]] = deque()
        self._is_scheduled = False

    def put(self, stream: TokenStream, number: int, delta: Delta | None) -> None:
        """Queue a token of a stream's prompt `number`, or None at its end, without delivering it. Thread-safe."""
        self._queue.append((stream, number, delta))

    def flush(self) -> None:
        """Schedule the delivery of the queue in the event loop. Thread-safe."""
        if self._is_scheduled or not self._queue:
            return
        self._is_scheduled = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the event loop is closed: nobody listens
            self._queue.clear()

    def _deliver(self) -> None:
        self._is_scheduled = False  # before the queue is read, so that a later token is flushed again
        while self._queue:
            stream, number, delta = self._queue.popleft()
            stream.take(number, delta)


class TokenStream:
    """The tokens of several generate requests as they arrive, then the Generation of each prompt."""

    def __init__(self, requests: Sequence[GenerateRequest], outbox: Outbox) -> None:
        self._outbox = outbox
        self._requests = [
            replace(request, on_token=partial(outbox.put, self, number), on_step=outbox.flush)
            for number, request in enumerate(requests)
        ]
        self._received: list[tuple[int, Delta | None]] = []
        self._has_received = asyncio.Event()
        self.tickets: list[Ticket] = []

    def submit(self, engine: EngineCalls) -> None:
        """Submit the requests to the engine, blocking; raises as `EngineCalls.submit_all`."""
        self.tickets = engine.submit_all(self._requests)
        for number, ticket in enumerate(self.tickets):
            ticket.add_done_callback(partial(self._on_done, number))

    async def first(self) -> None:
        """Wait for the first token; raises the error of a request that ended without one."""
        await self._has_received.wait()
        number, delta = self._received[0]
        if delta is None:
            self.result(number)

    def take(self, number: int, delta: Delta | None) -> None:
        """Receive a token of prompt `number`, or None at its end. Called in the event loop."""
        self._received.append((number, delta))
        self._has_received.set()

    async def receive(self) -> list[tuple[int, Delta | None]]:
        """Wait for tokens and return all since the last call: prompt numbers, each with a token or None at its end."""
        if not self._received:
            self._has_received.clear()
            await self._has_received.wait()
        received, self._received = self._received, []
        return received

    def result(self, number: int) -> Generation:
        """Return the generation of a prompt that has ended; raises what the engine raises."""
        try:
            result: Generation = self.tickets[number].result(0)
        except TicketCancelled as error:
            raise Unavailable("The engine stopped before the answer was complete.") from error
        return result

    def cancel(self) -> None:
        """Cancel the requests that are not finished."""
        for ticket in self.tickets:
            ticket.cancel()

    def _on_done(self, number: int, _: Any) -> None:
        self._outbox.put(self, number, None)
        self._outbox.flush()
