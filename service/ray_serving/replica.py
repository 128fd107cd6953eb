"""An inference replica, as it runs inside of Ray Serve: an engine over the blobs of a store, and nothing else.

It has no database and knows no key or name: what it is sent says which blob the weights of a digest lie in, and bytes
of another digest are refused. So a replica that has never heard of an adapter answers the same as any other. Built by
`deployment`, which adds what Ray Serve wants to know of the adapters it has.
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
from registry.stored_files import from_store
from service.engine import Delta, Engine, GenerateRequest, LoadableAdapter, Ticket
from service.engine.bases import AllowedBases
from service.engine.grammars import Grammars
from service.engine.text_support import stop_token_ids
from service.ray_serving.plan import ReplicaPlan
from service.ray_serving.wire import ReplicaMessage, ReplicaRequest, ReplicaResult, sent_error

PIECES_A_SECOND = 400
"""Of all answers together: each takes Ray some hundred microseconds, and the engine's thread waits for its turn."""
LONGEST_GAP = 0.1
GIVEN_UP = "The replica stopped before the answer was complete; send the request again."


class Replica:
    """One engine. Raises Unavailable where a base model cannot be loaded or the blobs are not there."""

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
        self._engine = Engine(
            self._bases,
            max_queue=plan.queue,
            max_queue_tokens=plan.queue_tokens,
            max_step_tokens=plan.batch_tokens,
            max_rows=plan.rows,
            bank_bytes=plan.bank_bytes,
            kv_bytes=plan.kv_bytes,
            share_prompts=plan.share_prompts,
            memory_bytes=plan.memory_bytes,
        )
        self._engine.preload(list(plan.bases))
        self._engine.start()
        self._streams = 0
        self._outbox = _Outbox(asyncio.get_running_loop())

    async def generate(self, asked: ReplicaRequest) -> AsyncIterator[ReplicaMessage]:
        """An answer, piece by piece; what is wrong with a request is its end. Whoever stops listening cancels it."""
        stream = _Stream(self._gap)
        submitting = asyncio.create_task(asyncio.to_thread(self._submit, asked, stream))
        try:
            ticket = await asyncio.shield(submitting)
        except asyncio.CancelledError:  # the thread goes on: what it submits is for nobody
            submitting.add_done_callback(_give_up)
            raise
        except SoupError as error:
            yield ReplicaResult(0, 0, error=sent_error(error))
            return
        ticket.add_done_callback(lambda _: self._outbox.end(stream))
        self._streams += 1
        try:
            yield []
            while not stream.told:
                if pieces := await stream.arrived():
                    yield pieces
            yield _ended(ticket, stream)
        finally:
            self._streams -= 1
            ticket.cancel()

    def _gap(self) -> float:
        """Seconds from one piece of an answer to the next, so that all of them together are not too many."""
        return min(LONGEST_GAP, self._streams / PIECES_A_SECOND)

    def stop(self) -> None:
        """End what is under way, as Ray takes the replica away."""
        self._engine.stop(drain=0.0, patience=5.0)

    def _submit(self, asked: ReplicaRequest, stream: _Stream) -> Ticket:
        """Have the engine begin; raises what it raises, and Incompatible for another state of the base model."""
        base = self._bases.text(asked.base_id)
        if base.shape.fingerprint != asked.fingerprint:
            raise Incompatible(
                f"A replica on Ray has another state of base model '{asked.base_id}' "
                f"({base.shape.fingerprint[:19]} and not {asked.fingerprint[:19]}): deploy the replicas again."
            )
        ends = stop_token_ids(base, asked.params.end_ids)
        request = GenerateRequest(
            asked.base_id, asked.prompt, self._adapter(asked), asked.params,
            on_token=partial(self._outbox.put, stream), on_step=self._outbox.flush, on_end=stream.count,
            namespace=asked.namespace, owner=asked.owner,
            grammar=None if asked.schema is None else self._grammars.grammar(base, ends, asked.schema),
        )  # fmt: skip
        return self._engine.submit(request)

    def _adapter(self, asked: ReplicaRequest) -> LoadableAdapter | None:
        if asked.digest is None:
            return None
        assert asked.config is not None
        assert asked.stored is not None
        return from_store(
            asked.digest, asked.config, asked.stored, self._blobs, named=asked.digest, size_bytes=asked.size_bytes
        )


def _give_up(submitted: asyncio.Task[Ticket]) -> None:
    """Cancel what was submitted when nobody listens any more."""
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()


def _ended(ticket: Ticket, stream: _Stream) -> ReplicaResult:
    """How a request ended whose ticket is done."""
    try:
        return ReplicaResult(*stream.counted, generation=ticket.result(0))
    except TicketCancelled:
        return ReplicaResult(*stream.counted, error=sent_error(Unavailable(GIVEN_UP)))
    except SoupError as error:
        return ReplicaResult(*stream.counted, error=sent_error(error))


class _Stream:
    """What has come for one request and was not sent yet. `count` is called in the engine's thread, before the end."""

    def __init__(self, gap: Callable[[], float]) -> None:
        self.counted = (0, 0)
        self._over = False
        self._there: list[Delta] = []
        self._news = asyncio.Event()
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        """When the next piece may be sent; the end, and what came before it, is sent at once."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def told(self) -> bool:
        """Whether it is over, and all of it was given."""
        return self._over and not self._there

    def count(self, read: int, written: int) -> None:
        self.counted = read, written

    def take(self, delta: Delta | None) -> None:
        """A token, or None at the end."""
        if delta is None:
            self._over = True
        else:
            self._there.append(delta)
        if self._over or self._loop.time() >= self._due:
            self._news.set()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._due, self._news.set)

    async def arrived(self) -> list[Delta]:
        """What has come since the last call; nothing where the end came alone."""
        await self._news.wait()
        self._news.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = self._loop.time() + self._gap()
        found, self._there = self._there, []
        return found


class _Outbox:
    """What the engine's thread has for all streams, until the event loop is woken up for it, once a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._things: deque[tuple[_Stream, Delta | None]] = deque()
        self._woken = False

    def put(self, stream: _Stream, delta: Delta | None) -> None:
        """A token of a stream, or None at its end. From any thread."""
        self._things.append((stream, delta))

    def end(self, stream: _Stream) -> None:
        """A stream has ended. From any thread."""
        self.put(stream, None)
        self.flush()

    def flush(self) -> None:
        """Have everything delivered soon. From any thread."""
        if self._woken or not self._things:
            return
        self._woken = True
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before the last look: what comes after it is flushed again
        while self._things:
            stream, delta = self._things.popleft()
            stream.take(delta)
