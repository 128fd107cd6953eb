"""An inference replica, which runs inside of Ray Serve: an engine over the blobs of a store (`EngineHost`).

Any replica can answer any request. Wrapped by `deployment`, which reports the adapters that it has used to Ray Serve.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

from registry.errors import SoupError
from service.engine import Delta, Ticket
from service.engine_process.host import EngineHost
from service.engine_process.plan import EnginePlan
from service.engine_process.wire import Ended, ReplicaMessage, SentRequest

MESSAGES_PER_SECOND = 400
"""Of all answers together: each message takes Ray some hundred microseconds, in which the engine's thread waits."""
MAX_GAP_SECONDS = 0.1


class Replica:
    """An engine and its blobs. Raises Unavailable if a base model cannot be loaded, or without the folder of blobs."""

    def __init__(self, plan: EnginePlan) -> None:
        self._host = EngineHost(plan)
        self._engine = self._host.engine
        self._engine.preload(list(plan.bases))
        self._engine.start()
        self._streams = 0
        self._outbox = _Outbox(asyncio.get_running_loop())

    async def generate(self, request: SentRequest) -> AsyncIterator[ReplicaMessage]:
        """Generate an answer, message by message; errors are in the last one. Closing the iterator cancels it."""
        stream = _Stream(self._gap_seconds)
        submitting = asyncio.create_task(asyncio.to_thread(self._submit, request, stream))
        try:
            ticket = await asyncio.shield(submitting)
        except asyncio.CancelledError:  # the thread goes on, and submits a request that nobody waits for
            submitting.add_done_callback(_cancel_submitted)
            raise
        except SoupError as error:
            yield Ended(error)
            return
        ticket.add_done_callback(lambda _: self._outbox.end(stream))
        self._streams += 1
        try:
            yield []
            while not stream.is_exhausted:
                if deltas := await stream.next_deltas():
                    yield deltas
            yield Ended.of(ticket)
        finally:
            self._streams -= 1
            ticket.cancel()

    def _gap_seconds(self) -> float:
        """Seconds between messages of one answer, so that all answers together send `MESSAGES_PER_SECOND`."""
        return min(MAX_GAP_SECONDS, self._streams / MESSAGES_PER_SECOND)

    def stop(self) -> None:
        """End all requests; called when Ray removes the replica."""
        self._engine.stop(drain=0.0, patience=5.0)

    def _submit(self, request: SentRequest, stream: _Stream) -> Ticket:
        """Submit to the engine; raises its errors and those of `EngineHost.receive`."""
        on_token = partial(self._outbox.put, stream)
        return self._engine.submit(self._host.receive(request, on_token=on_token, on_step=self._outbox.flush))


def _cancel_submitted(submitted: asyncio.Task[Ticket]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()


class _Stream:
    """Tokens of one request that were not sent yet. Used on the event loop."""

    def __init__(self, gap_seconds: Callable[[], float]) -> None:
        self._has_ended = False
        self._deltas: list[Delta] = []
        self._is_due = asyncio.Event()
        self._gap_seconds = gap_seconds
        self._loop = asyncio.get_running_loop()
        self._due_at = 0.0
        """When the next message may be sent; the last tokens are sent at once."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_exhausted(self) -> bool:
        """True if it has ended and all tokens were returned."""
        return self._has_ended and not self._deltas

    def add(self, delta: Delta | None) -> None:
        """Add a token, or None at the end."""
        if delta is None:
            self._has_ended = True
        else:
            self._deltas.append(delta)
        if self._has_ended or self._loop.time() >= self._due_at:
            self._is_due.set()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._due_at, self._is_due.set)

    async def next_deltas(self) -> list[Delta]:
        """Wait until a message is due; return the tokens since the last one, possibly none at the end."""
        await self._is_due.wait()
        self._is_due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_at = self._loop.time() + self._gap_seconds()
        deltas, self._deltas = self._deltas, []
        return deltas


class _Outbox:
    """Tokens of all streams on their way from the engine's thread to the event loop, which is woken once a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deltas: deque[tuple[_Stream, Delta | None]] = deque()
        self._is_scheduled = False

    def put(self, stream: _Stream, delta: Delta | None) -> None:
        """Add a token of a stream, or None at its end. Thread-safe."""
        self._deltas.append((stream, delta))

    def end(self, stream: _Stream) -> None:
        """End a stream. Thread-safe."""
        self.put(stream, None)
        self.flush()

    def flush(self) -> None:
        """Schedule the delivery of all tokens. Thread-safe."""
        if self._is_scheduled or not self._deltas:
            return
        self._is_scheduled = True
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False  # first, so that tokens added after the loop schedule it again
        while self._deltas:
            stream, delta = self._deltas.popleft()
            stream.add(delta)
