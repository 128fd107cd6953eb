"""The engine of a server that sends generations to replicas on Ray.

Scores, embeddings, and generations with an adapter that is not stored (a mixture in a request) are computed by the
server's own engine. If a replica is lost before its first token, another one gets the request; after that the
stream ends with an error, since a second attempt may generate other text.
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
from typing import TYPE_CHECKING, Any

from registry.errors import Busy, Internal, SoupError, Unavailable
from registry.tasks.ray_connection import ray_connection
from service.engine import EngineLimits, Ticket
from service.engine.fairness import AdmissionControl
from service.engine.remote import Outcome, RemoteEngine, RemoteRequest
from service.engine.steps import Owner
from service.engine.text_calls import STOPPING, BaseSource, EngineCalls
from service.engine_process.wire import Ended, ReplicaMessage, SentRequest, can_generate_elsewhere, sent_request
from service.ray_serving.deployment import DEPLOYMENT

if TYPE_CHECKING:
    from service.engine.request import Request

log = logging.getLogger("soup.ray")

MAX_ATTEMPTS = 3
"""Replicas that are tried one after the other, before a request without a token is answered 503."""
PAUSE_SECONDS = 1.0
"""Wait before a further attempt, for Ray to notice a lost replica."""
RETRY_SECONDS = 2
STOP_TASKS_SECONDS = 2.0
"""How long a stop waits at most for the tasks of the event loop."""
MIN_STOP_SECONDS = 0.1
"""How long a stop waits for each step of the shutdown once its time is over."""
FULL = "All replicas on Ray have as much as they take: try again in {} s."
INTERRUPTED = "The replica that was answering ended before the answer was whole; send the request again."
NOT_ADMITTED = (
    "No replica on Ray took the request in {:g} seconds (SOUP_RAY_SECONDS): `soup ray status` says how they are."
)
LOST = "The replicas on Ray were lost before they answered: try again."


class _ReplicaLost(Exception):  # never shown to clients
    """A replica was lost before its answer was complete."""


class RayEngine(RemoteEngine):
    """The engine over replicas and the server's own engine, `local`; connected to Ray from `start` to `stop`.

    `address` is the head of the cluster, `app` the name of the replicas on it; a request waits `seconds` for a replica
    to admit it.
    """

    def __init__(
        self,
        bases: BaseSource,
        local: EngineCalls,
        *,
        address: str,
        app: str,
        seconds: float,
        limits: EngineLimits = EngineLimits(),
    ) -> None:
        super().__init__(bases)
        self._local = local
        self.adapter_metrics = local.adapter_metrics
        self._address, self._app, self._seconds = address, app, seconds
        self._admission = AdmissionControl(limits.max_requests, limits.max_tokens)
        self._is_stopping = False
        self._passed_at: dict[str | None, float] = {}
        """When the last token arrived, by base model, and under None of any: /readyz sees by it what is stuck."""
        self._ray_loop = asyncio.new_event_loop()
        self._ray_thread = threading.Thread(target=self._ray_loop.run_forever, name="ray", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection = ExitStack()
        self._handle: Any = None

    # --- from any thread ------------------------------------------------------------------------

    def start(self, base_ids: Sequence[str] = ()) -> Future[None]:
        """Connect and start; raises as `ray_connection`."""
        self._connection.enter_context(ray_connection(self._address))
        self._ray_thread.start()
        self._handle = asyncio.run_coroutine_threadsafe(self._open_handle(), self._ray_loop).result()
        return self._local.start(base_ids)

    @property
    def preloading(self) -> bool:
        """See `EngineCalls`."""
        return self._local.preloading

    def stop(self, *, drain: float = 10.0, patience: float | None = None) -> bool:
        """See `EngineCalls`; requests that replicas have not answered within `drain` end with Unavailable.

        Returns False too if Ray does not close the connection in time.
        """
        drained_at = time.monotonic() + drain
        with self._changed:
            self._is_stopping = True
        stopped = self._local.stop(drain=drain, patience=patience)
        with self._changed:
            self._changed.wait_for(lambda: not self._remote, max(0.0, drained_at - time.monotonic()))
            unanswered = list(self._remote.values())
        for remote in unanswered:
            self._end(remote, Unavailable(STOPPING))
        deadline = None if patience is None else drained_at + patience
        if self._ray_thread.is_alive():
            seconds = min(STOP_TASKS_SECONDS, _seconds_until(deadline))
            asyncio.run_coroutine_threadsafe(self._cancel_tasks(seconds), self._ray_loop).result()
            self._ray_loop.call_soon_threadsafe(self._ray_loop.stop)
            self._ray_thread.join()
            self._ray_loop.close()
        closing = threading.Thread(target=self._connection.close, name="ray-end", daemon=True)
        closing.start()
        closing.join(None if deadline is None else _seconds_until(deadline))
        return stopped and not closing.is_alive()

    def check_admission(self, owner: Owner, *, local: bool = False) -> None:
        """See `EngineCalls`. Requests for replicas are limited separately, until a replica has admitted them."""
        if local:
            self._local.check_admission(owner, local=True)
            return
        with self._changed:
            self._check_remote_admission(owner)

    def loaded_bases(self) -> tuple[str, ...]:
        """See `EngineCalls`: in the server's own engine."""
        return self._local.loaded_bases()

    def is_packed(self, base_id: str) -> bool | None:
        """See `EngineCalls`: in the server's own engine."""
        return self._local.is_packed(base_id)

    def counters(self) -> dict[str, float]:
        """See `EngineCalls`: of the server's own engine; requests include those that are sent to replicas."""
        counters = self._local.counters()
        with self._changed:
            counters["requests"] += len(self._remote)
            for status, ended in self._ended_counts.items():
                counters[f"requests_{status}_total"] += ended
        return counters

    def seconds_since_pass(self, base_id: str | None = None) -> float:
        """See `EngineCalls`; a token from a replica counts as a pass."""
        since_token = time.monotonic() - self._passed_at.get(base_id, -math.inf)
        return min(since_token, self._local.seconds_since_pass(base_id))

    def _enqueue(self, requests: Sequence[Request]) -> list[Ticket]:
        if not all(map(can_generate_elsewhere, requests)):
            return self._local._enqueue(requests)
        owner = requests[0].owner if requests else None
        for request in requests:
            request.check(self._source.text(request.base_id).shape)
        with self._changed:
            self._check_remote_admission(owner)
            if not self._remote:
                self._passed_at[None] = time.monotonic()
            added = self._add(requests)
            for remote in added:  # under the lock: a stop that comes between ends all of them
                self._ray_loop.call_soon_threadsafe(self._send, remote)
        return [remote.ticket for remote in added]

    def _check_remote_admission(self, owner: Owner) -> None:
        """Raise as `check_admission`, under the lock. Requests that replicas have admitted do not count: replicas limit
        them.
        """
        if self._is_stopping:
            raise Unavailable(STOPPING)
        pending = [remote.group for remote in self._remote.values() if remote.started_at is None]
        self._admission.check(pending, owner, lambda _tokens: RETRY_SECONDS)  # the replicas' speed is unknown

    # --- on the event loop ------------------------------------------------------------------------

    async def _open_handle(self) -> Any:
        """Open the handle, whose router runs on this event loop: another loop would cost a switch for each message."""
        from ray.serve.handle import DeploymentHandle

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        handle: Any = DeploymentHandle(DEPLOYMENT, self._app)
        handle._init(_run_router_in_separate_loop=False)
        return handle.options(
            stream=True,
            method_name="generate",
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )

    async def _cancel_tasks(self, seconds: float) -> None:
        """Cancel all tasks on the event loop, also the handle's, and wait for them at most `seconds`."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _send(self, remote: RemoteRequest) -> None:
        task = self._ray_loop.create_task(self._answer(remote))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        remote.ticket.add_done_callback(lambda _: self._ray_loop.call_soon_threadsafe(task.cancel))

    async def _answer(self, remote: RemoteRequest) -> None:
        """Have a replica answer a request, and settle it however that ends."""
        outcome: Outcome
        counts: tuple[int, int] | None = None
        try:
            async with asyncio.timeout(None) as patience:
                ended = await self._try_replicas(remote, patience)
            counts, outcome = (ended.prompt_tokens, ended.generated_tokens), ended.outcome
        except asyncio.CancelledError:  # by the client, who gets no result, or by a stop
            outcome = Unavailable(STOPPING)
        except SoupError as error:
            outcome = error
        except TimeoutError:
            outcome = Unavailable(NOT_ADMITTED.format(self._seconds), retry_after=RETRY_SECONDS)
        except Exception:
            log.exception("a request to Ray failed")
            outcome = Internal("The request to Ray failed; the server's log says why.")
        self._end(remote, outcome, counts)

    async def _try_replicas(self, remote: RemoteRequest, patience: asyncio.Timeout) -> Ended:
        """Send a request to one replica after the other until one answers; raises Busy and Unavailable."""
        fingerprint = self._source.text(remote.request.base_id).shape.fingerprint
        request, adapter = sent_request(remote.request, fingerprint), remote.request.adapter
        preferred_digest = "" if adapter is None else adapter.digest
        for attempt in range(MAX_ATTEMPTS):
            patience.reschedule(self._ray_loop.time() + self._seconds)
            if attempt:
                await asyncio.sleep(PAUSE_SECONDS)
            try:
                result = await self._try_replica(request, preferred_digest, remote, patience)
            except _ReplicaLost as lost:
                fields = {"try": attempt + 1, "why": str(lost)[:300]}
                log.warning("a replica on Ray was lost", extra={"fields": fields})
                if remote.tokens:
                    raise Unavailable(INTERRUPTED, retry_after=RETRY_SECONDS) from lost
                remote.started_at = None
            else:
                if attempt == MAX_ATTEMPTS - 1 or not isinstance(result.outcome, Busy):
                    return result
                preferred_digest = ""  # it would lead to the full replica again
        raise Unavailable(LOST, retry_after=RETRY_SECONDS)

    async def _try_replica(
        self, request: SentRequest, preferred_digest: str, remote: RemoteRequest, patience: asyncio.Timeout
    ) -> Ended:
        """Send a request to a replica, preferably one that has used this digest; return its last message.

        Raises _ReplicaLost, and Busy if all replicas have as many requests as they take.
        """
        from grpc import RpcError
        from ray.exceptions import RayError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        answer = self._handle.options(multiplexed_model_id=preferred_digest).remote(request)
        try:
            return await self._forward(answer, remote, patience)
        except BackPressureError as error:
            raise Busy(FULL.format(RETRY_SECONDS), retry_after=RETRY_SECONDS) from error
        except DeploymentUnavailableError as error:
            raise Unavailable(f"The replicas '{self._app}' on Ray could not be started.", retry_after=5) from error
        except (RayError, RpcError, ConnectionError) as error:
            raise _ReplicaLost(type(error).__name__) from error
        except asyncio.CancelledError as error:
            answer.cancel()
            if _is_cancelled():
                raise
            raise _ReplicaLost("cancelled by the replica") from error

    async def _forward(
        self, answer: AsyncIterator[ReplicaMessage], remote: RemoteRequest, patience: asyncio.Timeout
    ) -> Ended:
        """Pass the tokens of an answer on; return its last message, or raise _ReplicaLost if there is none."""
        async for message in answer:
            patience.reschedule(None)  # it was admitted, and may take any time
            if isinstance(message, Ended):
                await _exhaust(answer)
                return message
            remote.mark_started()
            remote.add_tokens(message)
            if message:
                self._passed_at |= dict.fromkeys((None, remote.request.base_id), time.monotonic())
            if remote.request.on_step is not None:
                remote.request.on_step()
        raise _ReplicaLost("no end")


def _seconds_until(deadline: float | None) -> float:
    """Seconds until a deadline, at least `MIN_STOP_SECONDS`; infinite without one."""
    return math.inf if deadline is None else max(MIN_STOP_SECONDS, deadline - time.monotonic())


async def _exhaust(answer: AsyncIterator[ReplicaMessage]) -> None:
    """Read an answer to its end, so that Ray does not treat it as abandoned."""
    from grpc import RpcError
    from ray.exceptions import RayError

    try:
        with suppress(RayError, RpcError, ConnectionError):
            async for _ in answer:
                pass
    except asyncio.CancelledError:
        if _is_cancelled():
            raise


def _is_cancelled() -> bool:
    """Return True if the running task was cancelled: a cancelled replica raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
