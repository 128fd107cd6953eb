"""The engine of a server whose texts are generated on Ray: what generates with a stored adapter goes to a replica.

What a replica cannot have stays with the engine of this process: texts that are scored or embedded, and soups that a
cook has in memory. A replica that is lost before a token came is nothing that a client hears of, as long as another
one takes the request; after that the stream ends with a sentence, since a second try may say something else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from registry.errors import Busy, Internal, SoupError, Unavailable
from registry.tasks.ray_connection import ray_connection
from service.engine import Engine, GenerateRequest, Generation, Ticket
from service.engine.base_cache import BaseSource
from service.engine.draft import RequestProgress
from service.engine.engine import STOPPING
from service.engine.steps import Owner, SequenceGroup, new_group
from service.ray_serving.deployment import DEPLOYMENT
from service.ray_serving.wire import (
    ReplicaMessage,
    ReplicaRequest,
    ReplicaResult,
    can_send,
    replica_request,
    result_or_error,
)

if TYPE_CHECKING:
    from service.engine.request import Request

log = logging.getLogger("soup.ray")

TRIES = 4
"""Replicas that are tried one after the other before a request that has no token yet is answered 503."""
PAUSE_SECONDS = 0.5
"""Before the second try, for Ray to notice; twice as long before each further one."""
TRIES_TAKEN = 2
"""Replicas that may be lost with the same request: it may be what they die of."""
RETRY_SECONDS = 2
END_SECONDS = 2.0
"""How long a stop waits at most for the tasks of the event loop."""
LEAST_SECONDS = 0.1
"""What a stop gives to each thing that has to end, where its time is over."""
FULL = "All replicas on Ray have as much as they take: try again in {} s."
CUT = "The replica that was answering ended before the answer was whole; send the request again."
NONE_TOOK = (
    "No replica on Ray took the request in {:g} seconds (SOUP_RAY_SECONDS): `soup ray status` says how they are."
)
LOST = "The replicas on Ray were lost before they answered: try again."


class _Lost(Exception):  # no error that people see: a try came to nothing
    """A replica was gone before its answer was whole."""


class RayEngine(Engine):
    """`Engine`, with the same calls and errors; it is connected to Ray from `start` to `stop`.

    `address` is the head of the cluster, `app` the name of the replicas on it; a request waits `seconds` for one to
    take it.
    """

    def __init__(self, bases: BaseSource, *, address: str, app: str, seconds: float, **limits: Any) -> None:
        super().__init__(bases, **limits)
        self._address, self._app, self._seconds = address, app, seconds
        self._away: dict[SequenceGroup, _Told] = {}
        """Requests that are with replicas, under the engine's lock."""
        self._numbers = count()
        self._loop_away = asyncio.new_event_loop()
        self._thread_away = threading.Thread(target=self._loop_away.run_forever, name="ray", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection = ExitStack()
        self._handle: Any = None

    # --- from any thread ------------------------------------------------------------------------

    def start(self, base_ids: Sequence[str] = ()) -> Future[None]:
        """Connect and start; raises as `ray_connection`."""
        self._connection.enter_context(ray_connection(self._address))
        self._thread_away.start()
        self._handle = asyncio.run_coroutine_threadsafe(self._open_handle(), self._loop_away).result()
        return super().start(base_ids)

    def stop(self, *, drain: float = 10.0, patience: float | None = None) -> bool:
        """See `Engine`; what replicas have not answered within `drain` ends with Unavailable.

        False too where Ray does not let go of the connection in the time that is left.
        """
        drained = time.monotonic() + drain
        ended = super().stop(drain=drain, patience=patience)
        with self._changed:
            self._changed.wait_for(lambda: not self._away, max(0.0, drained - time.monotonic()))
            left = list(self._away.items())
        for group, told in left:
            self._end(group, told.counted, Unavailable(STOPPING))
        last = None if patience is None else drained + patience
        if self._thread_away.is_alive():
            asyncio.run_coroutine_threadsafe(self._end_tasks(min(END_SECONDS, _left(last))), self._loop_away).result()
            self._loop_away.call_soon_threadsafe(self._loop_away.stop)
            self._thread_away.join()
            self._loop_away.close()
        closing_tokens = threading.Thread(target=self._connection.close, name="ray-end", daemon=True)
        closing_tokens.start()
        closing_tokens.join(None if last is None else _left(last))
        return ended and not closing_tokens.is_alive()

    def check_place(self, owner: Owner, *, here: bool = False) -> None:
        """See `Engine`. What goes away has a queue of its own, of requests that no replica has taken yet."""
        if here:
            super().check_place(owner, here=True)
            return
        with self._changed:
            self._check_away(owner)

    def counters(self) -> dict[str, float]:
        """See `Engine`; `requests` counts those that are away."""
        found = super().counters()
        with self._changed:
            return {**found, "requests": found["requests"] + len(self._away)}

    def _queued(self, requests: Sequence[Request]) -> list[Ticket]:
        if not all(map(can_send, requests)):
            return super()._queued(requests)
        owner = requests[0].owner if requests else None
        for request in requests:
            request.check(self._bases.text(request.base_id).shape)
        with self._changed:
            self._check_away(owner)
            if not self._away:
                self._passed_at[None] = time.monotonic()
            groups = [new_group(request, self._numbers) for request in requests]
            told = {group: _Told(group, self._passed_at) for group in groups}
            self._away |= told
            for group in groups:  # under the lock: a stop that comes between finds none that has not begun
                self._loop_away.call_soon_threadsafe(self._begin, group, told[group])
        return [group.ticket for group in groups]

    def _check_away(self, owner: Owner) -> None:
        """Under the lock; raises as `check_place`. What replicas have taken is theirs to limit, so that more of them
        take more."""
        if self._stop_at is not None:
            raise Unavailable(STOPPING)
        self._queue.check([group for group, told in self._away.items() if not told.taken], owner, self._moment)

    # --- on the event loop ------------------------------------------------------------------------

    async def _open_handle(self) -> Any:
        """The handle, whose choice of replicas runs on this event loop: another would take a turn for each piece."""
        from ray.serve.handle import DeploymentHandle

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        handle: Any = DeploymentHandle(DEPLOYMENT, self._app)
        handle._init(_run_router_in_separate_loop=False)
        return handle.options(
            stream=True, method_name="generate", _by_reference=False,
            request_serialization="pickle", response_serialization="pickle",
        )  # fmt: skip

    async def _end_tasks(self, seconds: float) -> None:
        """End what runs on the event loop, the handle's own tasks too, or leave it after a moment."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _begin(self, group: SequenceGroup, told: _Told) -> None:
        task = self._loop_away.create_task(self._answered(group, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        group.ticket.add_done_callback(lambda _: self._loop_away.call_soon_threadsafe(task.cancel))

    async def _answered(self, group: SequenceGroup, told: _Told) -> None:
        """Have a request answered by a replica, however it ends."""
        try:
            async with asyncio.timeout(None) as patience:
                ended = await self._tried(group, told, patience)
        except asyncio.CancelledError:  # by the client, whose ticket has no answer, or by a stop
            self._end(group, told.counted, Unavailable(STOPPING))
        except SoupError as error:
            self._end(group, told.counted, error)
        except TimeoutError:
            message = NONE_TOOK.format(self._seconds)
            self._end(group, told.counted, Unavailable(message, retry_after=RETRY_SECONDS))
        except Exception:
            log.exception("a request to Ray failed")
            self._end(group, told.counted, Internal("The request to Ray failed; the server's log says why."))
        else:
            self._end(group, (ended.read, ended.written), result_or_error(ended))

    async def _tried(self, group: SequenceGroup, told: _Told, patience: asyncio.Timeout) -> ReplicaResult:
        """Try one replica after the other; raises Busy and Unavailable."""
        assert isinstance(group.request, GenerateRequest)
        asked = replica_request(group.request, self._bases.text(group.request.base_id).shape.fingerprint)
        lost_with = 0
        known_by = asked.digest or ""
        patience.reschedule(self._loop_away.time() + self._seconds)
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE_SECONDS * 2 ** (number - 1))
            try:
                ended = await self._one_try(asked, known_by, told, patience)
                if number == TRIES - 1 or not _is_full(ended):
                    return ended
                known_by = ""  # which would be the full one again
                patience.reschedule(self._loop_away.time() + self._seconds)
            except _Lost as lost:
                log.warning("a replica on Ray was lost", extra={"fields": {"try": number + 1, "why": str(lost)[:300]}})
                if told.tokens:
                    raise Unavailable(CUT, retry_after=RETRY_SECONDS) from lost
                lost_with += told.taken
                told.taken = False
                if lost_with == TRIES_TAKEN:
                    break
                patience.reschedule(self._loop_away.time() + self._seconds)
        raise Unavailable(LOST, retry_after=RETRY_SECONDS)

    async def _one_try(
        self, asked: ReplicaRequest, known_by: str, told: _Told, patience: asyncio.Timeout
    ) -> ReplicaResult:
        """What one replica answers, rather one that knows this digest; raises _Lost, and Busy where all have enough."""
        from grpc import RpcError
        from ray.exceptions import RayError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        answer = self._handle.options(multiplexed_model_id=known_by).remote(asked)
        try:
            return await _all_of(answer, told, patience)
        except BackPressureError as error:
            raise Busy(FULL.format(RETRY_SECONDS), retry_after=RETRY_SECONDS) from error
        except DeploymentUnavailableError as error:
            raise Unavailable(f"The replicas '{self._app}' on Ray could not be started.", retry_after=5) from error
        except (RayError, RpcError, ConnectionError) as error:
            raise _Lost(type(error).__name__) from error
        except asyncio.CancelledError as error:
            answer.cancel()
            if _is_cancelled():
                raise
            raise _Lost("cancelled by the replica") from error

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, group: SequenceGroup, counted: tuple[int, int], outcome: Generation | SoupError) -> None:
        """Settle a request, once."""
        with self._changed:
            if group not in self._away:
                return
            told = self._away.pop(group)
            settled = "failed" if isinstance(outcome, SoupError) else "finished"
            how = "cancelled" if group.ticket.cancelled() else settled
            self._ends[how] += 1
        told.tell_end(group, how, counted)
        if group.ticket.set_running_or_notify_cancel():
            if isinstance(outcome, SoupError):
                group.ticket.set_exception(outcome)
            else:
                group.ticket.set_result(outcome)
        with self._changed:
            self._changed.notify_all()

    def _moment(self, tokens: int) -> int:  # noqa: ARG002
        """A moment: nobody here knows the speed of the replicas."""
        return RETRY_SECONDS


def _left(last: float | None) -> float:
    """Seconds until a moment, no less than it takes to end something; without one there is no limit."""
    return math.inf if last is None else max(LEAST_SECONDS, last - time.monotonic())


class _Told(RequestProgress):
    """What a request's client has been told so far."""

    def __init__(self, group: SequenceGroup, passed_at: dict[str | None, float]) -> None:
        super().__init__()
        self._request = group.request
        self._passed_at = passed_at
        """When a token last came, by base model, and under None of any: by this /readyz knows what is stuck."""
        self.taken = False
        """Whether a replica has it, and no other is to be asked."""
        self.tokens = 0

    @property
    def counted(self) -> tuple[int, int]:
        """Tokens read and written, where no replica says: whoever takes a request reads its prompt."""
        assert isinstance(self._request, GenerateRequest)
        return (len(self._request.prompt), self.tokens) if self.taken else (0, 0)

    def take(self) -> None:
        """A replica has it."""
        if not self.taken:
            self.taken, self.began = True, time.monotonic()

    def pass_on(self, pieces: Sequence[Any]) -> None:
        """Tell of new tokens."""
        assert isinstance(self._request, GenerateRequest)
        self.tokens += len(pieces)
        if pieces:
            now = time.monotonic()
            self.first = self.first or now
            self._passed_at |= dict.fromkeys((None, self._request.base_id), now)
        if self._request.on_token is not None:
            for one in pieces:
                self._request.on_token(one)
        if self._request.on_step is not None:
            self._request.on_step()


async def _all_of(answer: AsyncIterator[ReplicaMessage], told: _Told, patience: asyncio.Timeout) -> ReplicaResult:
    """Pass an answer on as it comes; raises _Lost where it has no end."""
    async for piece in answer:
        patience.reschedule(None)  # it was taken: how long it computes is the replica's affair
        if isinstance(piece, ReplicaResult):
            await _rest(answer)
            return piece
        told.take()
        told.pass_on(piece)
    raise _Lost("no end")


async def _rest(answer: AsyncIterator[ReplicaMessage]) -> None:
    """Hear that an answer is over, so that Ray does not take it for one that was given up."""
    from grpc import RpcError
    from ray.exceptions import RayError

    try:
        with suppress(RayError, RpcError, ConnectionError):
            async for _ in answer:
                pass
    except asyncio.CancelledError:
        if _is_cancelled():
            raise


def _is_full(ended: ReplicaResult) -> bool:
    """Whether a replica had no place for a request; others may have one."""
    return ended.error is not None and ended.error["code"] == Busy.code


def _is_cancelled() -> bool:
    """Whether it is the running task that was cancelled: what a replica is cancelled by comes as the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
