"""An inference replica, which runs inside of Ray Serve: an engine over the blobs of a store (`EngineHost`).

Any replica can answer any request. Wrapped by `deployment`, which reports the adapters that it has used to Ray Serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from registry.errors import SoupError
from service.engine import Delta, GenerateRequest
from service.engine.token_stream import Outbox, TokenStream
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
        self._engine.start(list(plan.bases)).result()
        self._streams = 0
        self._outbox = Outbox(asyncio.get_running_loop())

    async def generate(self, request: SentRequest) -> AsyncIterator[ReplicaMessage]:
        """Generate an answer, message by message; errors are in the last one. Closing the iterator cancels it."""
        submitting = asyncio.create_task(asyncio.to_thread(self._submit, request))
        try:
            stream = await asyncio.shield(submitting)
        except asyncio.CancelledError:  # the thread goes on, and submits a request that nobody waits for
            submitting.add_done_callback(_cancel_submitted)
            raise
        except SoupError as error:
            yield Ended(error)
            return
        self._streams += 1
        try:
            yield []
            async for deltas in self._messages(stream):
                yield deltas
            yield Ended.of(stream.tickets[0])
        finally:
            self._streams -= 1
            stream.cancel()

    async def _messages(self, stream: TokenStream) -> AsyncIterator[list[Delta]]:
        """Yield the tokens since the last message, until the end."""
        running = True
        while running:
            received = await stream.receive()
            deltas = [delta for _, delta in received if delta is not None]
            running = len(deltas) == len(received)
            if deltas:
                yield deltas
            if running:
                await asyncio.sleep(self._gap_seconds())

    def _gap_seconds(self) -> float:
        """Seconds between messages of one answer, so that all answers together send `MESSAGES_PER_SECOND`."""
        return min(MAX_GAP_SECONDS, self._streams / MESSAGES_PER_SECOND)

    def stop(self) -> None:
        """End all requests; called when Ray removes the replica."""
        self._engine.stop(drain=0.0, patience=5.0)

    def _submit(self, request: SentRequest) -> TokenStream:
        """Submit to the engine; raises its errors and those of `EngineHost.receive`."""
        received = self._host.receive(request)
        assert isinstance(received, GenerateRequest), "replicas only generate"
        stream = TokenStream([received], self._outbox)
        stream.submit(self._engine)
        return stream


def _cancel_submitted(submitted: asyncio.Task[TokenStream]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()
