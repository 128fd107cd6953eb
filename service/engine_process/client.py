"""The engine of a server, in a child process: started with the server, and again whenever it ends unexpectedly.

Its requests then end with one error, since another attempt may generate other text; what is stored is in the server.
The child ends with its server, however that ends: it sees the closed connection.
"""

from __future__ import annotations

import logging
import math
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from registry.adapters.weights import save_tensors
from registry.errors import NotFound, SoupError, Unavailable
from service.engine import Delta, Ticket
from service.engine.remote import RemoteEngine, RemoteRequest
from service.engine.request import Request
from service.engine.steps import Owner
from service.engine.text_calls import STOPPING, BaseSource
from service.engine_process.calls import Peer
from service.engine_process.child import EngineChild, start_child
from service.engine_process.plan import EnginePlan
from service.engine_process.wire import Ended, sent_request

log = logging.getLogger("soup.engine")

PAUSE_SECONDS = 1.0
"""Seconds before the process is started again."""
ENDED = "The engine's process ended before the answer was complete, and is started again: send the request again."
AWAY = "The engine's process is starting: try again in some seconds."


class ProcessEngine(RemoteEngine):
    """The engine of `plan` in a child process; `source` has the same base models, for their tokenizers and shapes.

    `child` is the first process, if it was started before.
    """

    def __init__(self, source: BaseSource, plan: EnginePlan, *, child: EngineChild | None = None) -> None:
        super().__init__(source)
        self._plan = plan
        self._first_child = child
        self._preloaded: Future[None] = Future()
        self._is_loading = False
        self._is_stopping = False
        self._is_serving = False
        """True once the process takes requests: its first message must be the plan."""
        self._peer: Peer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    # --- from any thread ------------------------------------------------------------------------

    def start(self, base_ids: Sequence[str] = ()) -> Future[None]:
        """See `EngineCalls`."""
        self._is_loading = True
        self._thread = threading.Thread(target=self._keep_running, args=(base_ids,), name="engine-process", daemon=True)
        self._thread.start()
        return self._preloaded

    @property
    def preloading(self) -> bool:
        """See `EngineCalls`; also from the end of the process until it has been started again."""
        with self._changed:
            return self._is_loading or (self._peer is not None and self._peer.is_gone)

    def stop(self, *, drain: float = 10.0, patience: float | None = None) -> bool:
        """See `EngineCalls`. A process that has not stopped in time is killed."""
        with self._changed:
            self._is_stopping = True
            peer, process = self._peer, self._process
            has_requests = bool(self._remote)
            self._changed.notify_all()
        if peer is not None and has_requests:
            with suppress(SoupError):
                peer.call("stop", drain, patience, seconds=None if patience is None else drain + patience)
        if process is not None:
            process.kill()
        if self._thread is not None:
            self._thread.join()
        return True

    def check_admission(self, owner: Owner, *, local: bool = False) -> None:  # noqa: ARG002
        """See `EngineCalls`."""
        self._ask("check_admission", owner)

    def loaded_bases(self) -> tuple[str, ...]:
        """See `EngineCalls`; none while no process runs."""
        with suppress(Unavailable):
            return tuple(self._ask("loaded_bases"))
        return ()

    def is_packed(self, base_id: str) -> bool | None:
        """See `EngineCalls`."""
        with suppress(Unavailable):
            packed: bool | None = self._ask("is_packed", base_id)
            return packed
        return None

    def counters(self) -> dict[str, float]:
        """See `EngineCalls`: since the process was started; raises Unavailable while none runs."""
        return dict(self._ask("counters"))

    def seconds_since_pass(self, base_id: str | None = None) -> float:
        """See `EngineCalls`."""
        with suppress(Unavailable):
            return float(self._ask("seconds_since_pass", base_id))
        return math.inf

    def _ask(self, name: str, *arguments: Any) -> Any:
        with self._changed:
            peer = self._running_peer()
        return peer.call(name, *arguments)

    def _running_peer(self) -> Peer:
        """The process; raises Unavailable where none serves, and while stopping. Under the lock."""
        if self._is_stopping or not self._is_serving or self._peer is None:
            raise Unavailable(STOPPING if self._is_stopping else AWAY)
        return self._peer

    def _enqueue(self, requests: Sequence[Request]) -> list[Ticket]:
        prints = {base_id: self._source.text(base_id).shape.fingerprint for base_id in {r.base_id for r in requests}}
        with self._changed:
            peer = self._running_peer()
            added = self._add(requests)
        numbers = [remote.number for remote in added]
        try:
            sent = [(remote.number, sent_request(remote.request, prints[remote.request.base_id])) for remote in added]
            peer.call("submit", sent, on_late=partial(self._cancel, peer, numbers))
        except BaseException as error:
            with self._changed:
                if all(number in self._remote for number in numbers):
                    for number in numbers:
                        del self._remote[number]
                    raise
            for remote in added:  # the process ended, and with it some of these
                self._end(remote, Unavailable(ENDED) if not isinstance(error, SoupError) else error)
        for remote in added:
            remote.ticket.add_done_callback(partial(self._on_done, peer, remote.number))
        return [remote.ticket for remote in added]

    def _on_done(self, peer: Peer, number: int, ticket: Ticket) -> None:
        """Have the process drop a cancelled request; it ends here when it has ended there."""
        if ticket.cancelled():
            self._cancel(peer, [number])

    def _cancel(self, peer: Peer, numbers: Sequence[int]) -> None:
        with suppress(Unavailable):
            peer.tell_soon("cancel", numbers)

    # --- the thread that starts the process and takes its messages --------------------------------

    def _keep_running(self, base_ids: Sequence[str]) -> None:
        while True:
            status = self._run_process(base_ids)
            with self._changed:
                self._peer = self._process = None
                self._is_serving, self._is_loading, is_stopping = False, True, self._is_stopping
                unanswered = list(self._remote.values())
            for remote in unanswered:
                self._end(remote, Unavailable(STOPPING if is_stopping else ENDED))
            if not self._preloaded.done():
                self._preloaded.set_exception(
                    Unavailable(f"The engine's process ended with status {status} while it started; the log says why.")
                )
            if is_stopping or self._preloaded.exception() is not None:
                return
            log.error("the engine's process ended and is started again", extra={"fields": {"status": status}})
            with self._changed:
                if self._changed.wait_for(lambda: self._is_stopping, PAUSE_SECONDS):
                    return

    def _run_process(self, base_ids: Sequence[str]) -> int | str:
        """Run the process until it has ended; returns its status."""
        try:
            child, self._first_child = self._first_child or start_child(), None
        except OSError as error:
            return str(error)
        process = child.process
        peer = Peer(
            child.connection,
            calls={"tensors": self._tensors},
            messages={
                "serving": self._on_serving,
                "loaded": self._on_loaded,
                "step": self._on_step,
                "ended": self._on_ended,
            },
            gone=ENDED,
        )
        with self._changed:
            self._process, self._peer = process, peer
            if self._is_stopping:
                process.kill()
        with suppress(Unavailable):
            peer.send(self._plan, base_ids)
        peer.serve()
        process.kill()
        return process.wait()

    def _on_serving(self) -> None:
        with self._changed:
            self._is_serving = True

    def _on_loaded(self, error: SoupError | None) -> None:
        if self._preloaded.done():
            if error is not None:
                log.error("the engine's process was started again without its base models: %s", error.message)
        elif error is not None:
            self._preloaded.set_exception(error)
        else:
            self._preloaded.set_result(None)
        self._is_loading = False

    def _on_step(self, deltas: Sequence[tuple[int, Delta]], rows_done: dict[int, int]) -> None:
        """Take the tokens of a step, and how many texts of each request are scored."""
        listeners: dict[Callable[[], None] | None, None] = {}
        for number, delta in deltas:
            remote = self._begun(number)
            if remote is not None:
                remote.add_tokens([delta])
                listeners[remote.request.on_step] = None
        for number, done in rows_done.items():
            remote = self._begun(number)
            if remote is not None:
                remote.ticket.rows_done = done
        for listener in listeners:
            if listener is not None:
                listener()

    def _begun(self, number: int) -> RemoteRequest | None:
        """A request of which something was computed; None if it has ended."""
        remote = self._remote.get(number)
        if remote is not None:
            remote.mark_started()
        return remote

    def _on_ended(self, number: int, ended: Ended) -> None:
        remote = self._remote.get(number)
        if remote is not None:
            remote.started_at, remote.first_token_at = ended.started_at, ended.first_token_at
            self._end(remote, ended.outcome, (ended.prompt_tokens, ended.generated_tokens))

    def _tensors(self, digest: str) -> bytes:
        """The weights of an adapter that is not stored, for the requests that name it."""
        for remote in list(self._remote.values()):
            adapter = remote.request.adapter
            if adapter is not None and adapter.digest == digest:
                return save_tensors(dict(adapter.load()))
        raise NotFound(f"No request names adapter {digest} any more.")
