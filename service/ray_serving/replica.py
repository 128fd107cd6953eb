"""An inference replica, which runs inside of Ray Serve: an engine over the blobs of a store.

It has no database and knows no keys or names: each request says which blob has the weights of its digest, and bytes of
another digest are refused. So any replica can answer any request. Wrapped by `deployment`, which reports the adapters
that it has used to Ray Serve.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError as TicketCancelled
from functools import partial

from registry.blobs import open_blobs
from registry.cores import use_one_each
from registry.errors import Incompatible, SoupError, Unavailable
from registry.stored.adapters import from_store
from service.engine import Delta, Engine, GenerateRequest, LoadableAdapter, Ticket
from service.engine.bases import AllowedBases
from service.engine.grammars import Grammars
from service.engine.text_support import stop_token_ids
from service.ray_serving.plan import ReplicaPlan
from service.ray_serving.wire import ReplicaMessage, ReplicaRequest, ReplicaResult, sent_error

MESSAGES_PER_SECOND = 400
"""Of all answers together: each message takes Ray some hundred microseconds, in which the engine's thread waits."""
MAX_GAP_SECONDS = 0.1
STOPPED = "The replica stopped before the answer was complete; send the request again."


class Replica:
    """An engine and its blobs. Raises Unavailable if a base model cannot be loaded, or without the folder of blobs."""

    def __init__(self, plan: ReplicaPlan) -> None:
        use_one_each(plan.threads)
        if plan.blobs.url is None and not plan.blobs.folder.is_dir():
            raise Unavailable(
                f"There is no folder of blobs {plan.blobs.folder} on this node: mount it, or keep blobs in a bucket "
                "(SOUP_BLOBS_URL)."
            )
        self._blobs = open_blobs(plan.blobs, make=plan.blobs.url is not None)
        self._bases = AllowedBases(plan.bases, plan.cache)
        self._grammars = Grammars()
        self._engine = Engine(self._bases, plan.limits)
        self._engine.preload(list(plan.bases))
        self._engine.start()
        self._streams = 0
        self._outbox = _Outbox(asyncio.get_running_loop())

    async def generate(self, request: ReplicaRequest) -> AsyncIterator[ReplicaMessage]:
        """Generate an answer, message by message; errors are in the last one. Closing the iterator cancels it."""
        stream = _Stream(self._gap_seconds)
        submitting = asyncio.create_task(asyncio.to_thread(self._submit, request, stream))
        try:
            ticket = await asyncio.shield(submitting)
        except asyncio.CancelledError:  # the thread goes on, and submits a request that nobody waits for
            submitting.add_done_callback(_cancel_submitted)
            raise
        except SoupError as error:
            yield ReplicaResult(0, 0, error=sent_error(error))
            return
        ticket.add_done_callback(lambda _: self._outbox.end(stream))
        self._streams += 1
        try:
            yield []
            while not stream.is_exhausted:
                if deltas := await stream.next_deltas():
                    yield deltas
            yield _result(ticket, stream)
        finally:
            self._streams -= 1
            ticket.cancel()

    def _gap_seconds(self) -> float:
        """Seconds between messages of one answer, so that all answers together send `MESSAGES_PER_SECOND`."""
        return min(MAX_GAP_SECONDS, self._streams / MESSAGES_PER_SECOND)

    def stop(self) -> None:
        """End all requests; called when Ray removes the replica."""
        self._engine.stop(drain=0.0, patience=5.0)

    def _submit(self, request: ReplicaRequest, stream: _Stream) -> Ticket:
        """Submit to the engine; raises its errors, and Incompatible for another fingerprint of the base model."""
        base = self._bases.text(request.base_id)
        if base.shape.fingerprint != request.fingerprint:
            raise Incompatible(
                f"A replica on Ray has another state of base model '{request.base_id}' "
                f"({base.shape.fingerprint[:19]} and not {request.fingerprint[:19]}): deploy the replicas again."
            )
        grammar = None
        if request.schema is not None:
            stop_ids = stop_token_ids(base, request.params.end_ids)
            grammar = self._grammars.compile(base, stop_ids, request.schema)
        return self._engine.submit(
            GenerateRequest(
                request.base_id,
                request.prompt,
                self._adapter(request),
                request.params,
                on_token=partial(self._outbox.put, stream),
                on_step=self._outbox.flush,
                on_end=stream.set_counts,
                namespace=request.namespace,
                owner=request.owner,
                grammar=grammar,
            )
        )

    def _adapter(self, request: ReplicaRequest) -> LoadableAdapter | None:
        digest, config, stored = request.digest, request.config, request.stored
        if digest is None:
            return None
        assert config is not None
        assert stored is not None
        return from_store(digest, config, stored, self._blobs, named=digest, size_bytes=request.size_bytes)


def _cancel_submitted(submitted: asyncio.Task[Ticket]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()


def _result(ticket: Ticket, stream: _Stream) -> ReplicaResult:
    """The last message of a request whose ticket is done."""
    try:
        return ReplicaResult(*stream.token_counts, generation=ticket.result(0))
    except TicketCancelled:
        return ReplicaResult(*stream.token_counts, error=sent_error(Unavailable(STOPPED)))
    except SoupError as error:
        return ReplicaResult(*stream.token_counts, error=sent_error(error))


class _Stream:
    """Tokens of one request that were not sent yet. Used on the event loop, except for `set_counts`."""

    def __init__(self, gap_seconds: Callable[[], float]) -> None:
        self.token_counts = (0, 0)
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

    def set_counts(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Set the token counts of the request; called in the engine's thread, before the end."""
        self.token_counts = prompt_tokens, generated_tokens

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
