"""The engine: one thread that is the only caller of the base models' forward pass.

`step()` is schedule, run, settle; everything else hands requests in or answers out. Any thread may submit, wait and
cancel. An exception in a batch is the end of its requests and of nothing else.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from registry.base_model import LoadedBase
from registry.errors import Internal, SoupError, Unavailable
from service.engine.bank import Bank
from service.engine.choice import Ending
from service.engine.draft import Draft, GenerationDraft, ScoreDraft
from service.engine.execute import Executor
from service.engine.request import GenerateRequest, Request, State
from service.engine.runner import Runner
from service.engine.scheduler import Scheduler, Ticket, Work
from service.engine.texts import TextCalls

log = logging.getLogger(__name__)

MAX_RETRY_AFTER = 60
STOPPING = "The server is shutting down; try again when it is back."


class Engine(TextCalls):
    """Scores and generates for base models that `bases` gives by id (it may load them, and raise).

    `max_queue` requests are held at once; the other limits are the scheduler's and the bank's.
    """

    def __init__(
        self,
        bases: Callable[[str], LoadedBase],
        *,
        max_queue: int = 256,
        max_batch_tokens: int = 4096,
        max_rows: int = 16,
        bank_bytes: int = 512 * 2**20,
    ) -> None:
        self._bases = bases
        self._scheduler = Scheduler(max_queue=max_queue, max_batch_tokens=max_batch_tokens, max_rows=max_rows)
        self._bank = Bank(bank_bytes)
        self._runner = Runner()
        self._drafts: dict[Work, Draft] = {}
        self._executor = Executor(self._runner, self._bank, self._drafts)
        self._changed = threading.Condition()  # guards the scheduler; told of work coming and of places getting free
        self._thread: threading.Thread | None = None
        self._stop_at: float | None = None
        self._pace = 0.1  # seconds between two answers, smoothed
        self._settled_at = time.monotonic()
        self._ends = dict.fromkeys(("finished", "failed", "cancelled"), 0)

    # --- from any thread ------------------------------------------------------------------------

    def submit(self, request: Request) -> Ticket:
        """Queue one request; raises InvalidPrompt, InvalidParameter, Busy, or Unavailable while stopping."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Ticket]:
        """Queue all of these requests or none; raises as `submit`."""
        drafts = [self._draft(request) for request in requests]
        with self._changed:
            if self._stop_at is not None:
                raise Unavailable(STOPPING)
            works = self._scheduler.add(requests, retry_after=self._retry_after())
            self._drafts.update(zip(works, drafts, strict=True))
            self._changed.notify_all()
        return [work.ticket for work in works]

    def cancel(self, ticket: Ticket) -> None:
        """Drop a request at the next step; one that has ended stays as it is."""
        ticket.cancel()

    def base(self, base_id: str) -> LoadedBase:
        """The base model of that id, as the engine uses it."""
        return self._bases(base_id)

    def wait_for_place(self, seconds: float) -> None:
        """Return when the queue has a place, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(self._has_place, seconds)

    def counters(self) -> dict[str, float]:
        """Figures for /metrics: names ending in `_total` only ever grow."""
        with self._changed:
            scheduler = self._scheduler
            return {
                "requests": scheduler.depth,
                "requests_waiting": scheduler.waiting,
                "generating_rows": scheduler.generating,
                "adapters_held": len(self._bank),
                "adapter_bytes": self._bank.bytes,
                "adapter_loads_total": self._bank.loads,
                **self._executor.counts,
                **{f"requests_{end}_total": count for end, count in self._ends.items()},
            }

    def start(self) -> None:
        """Start the thread; an engine starts once."""
        if self._thread is not None:
            raise Internal("the engine was started already")
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def stop(self, *, drain: float = 10.0) -> None:
        """Take no more requests, finish those held within `drain` seconds, and end the others with Unavailable."""
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + drain
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        else:
            self._fail_all(Unavailable(STOPPING))

    # --- the thread -----------------------------------------------------------------------------

    def _loop(self) -> None:
        while self._wait_for_work():
            try:
                self.step()
            except Exception:
                log.exception("the engine's step failed")
                self._fail_all(Internal("The engine failed; the server's log says where."))
        self._fail_all(Unavailable(STOPPING))

    def _wait_for_work(self) -> bool:
        """Block until there is something to run; False when it is time to stop."""
        with self._changed:
            if not self._scheduler.depth:
                self._changed.wait_for(lambda: self._scheduler.depth or self._stop_at is not None)
                self._settled_at = time.monotonic()
            if self._stop_at is None:
                return True
            return self._scheduler.depth > 0 and time.monotonic() < self._stop_at

    def step(self) -> bool:
        """Run the batch whose turn it is; False when there is nothing to do. The thread calls this, or a test."""
        with self._changed:
            ended = self._scheduler.drop_cancelled()
            batch = self._scheduler.next()
            alive = self._scheduler.alive()
        self._settle(ended)
        if batch is None:
            return False
        self._runner.retain(alive)
        try:
            finished, failures = self._executor.run(batch, self._bases(batch.key[0]))
        except Exception as error:
            finished, failures = [], [(row.work, error) for row in batch.rows]
        with self._changed:
            ended = [work for culprit, error in failures for work in self._scheduler.fail([culprit], as_soup(error))]
            ended += self._scheduler.finish(finished)
        self._settle(ended)
        return True

    # --- answers --------------------------------------------------------------------------------

    def _draft(self, request: Request) -> Draft:
        """Check a request against its base model and lay out its answer."""
        base = self._bases(request.base_id)
        request.check(base.shape)
        if not isinstance(request, GenerateRequest):
            return ScoreDraft(request)
        ending = Ending(base.eos_id, request.length_limit(base.shape))
        return GenerationDraft(request, ending, lambda ids: decoded(base, ids))

    def _settle(self, ended: Iterable[Work]) -> None:
        """Answer requests that have ended, outside of the lock: what waits for a ticket may submit again."""
        for work in ended:
            draft = self._drafts.pop(work)
            self._ends[work.state.value] += 1
            answer(work, draft)
            now = time.monotonic()
            self._pace += 0.1 * (now - self._settled_at - self._pace)
            self._settled_at = now
        with self._changed:
            self._changed.notify_all()

    def _fail_all(self, error: SoupError) -> None:
        with self._changed:
            ended = self._scheduler.drop_cancelled()
            ended += self._scheduler.fail(self._scheduler.live(), error)
        self._settle(ended)

    def _has_place(self) -> bool:
        return self._scheduler.depth < self._scheduler.max_queue or self._stop_at is not None

    def _retry_after(self) -> int:
        """Seconds in which a quarter of the queue is answered at the present pace."""
        return min(MAX_RETRY_AFTER, max(1, math.ceil(self._scheduler.depth * self._pace / 4)))


def answer(work: Work, draft: Draft) -> None:
    """Give an ended request's ticket its answer or error; a cancelled one has none."""
    if not work.ticket.set_running_or_notify_cancel():
        return
    if work.state is not State.FINISHED:
        work.ticket.set_exception(work.error)
        return
    try:
        work.ticket.set_result(draft.result())
    except Exception as error:
        work.ticket.set_exception(as_soup(error))


def as_soup(error: Exception) -> SoupError:
    """An error of ours as it is; any other is logged, and the caller hears of it without its details."""
    if isinstance(error, SoupError):
        return error
    log.error("a batch failed", exc_info=error)
    wrapped = Internal("The engine failed on this request; the server's log says why.")
    wrapped.__cause__ = error
    return wrapped


def decoded(base: LoadedBase, ids: Sequence[int]) -> str:
    """The text of ids, special tokens left out."""
    text: str = base.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)
    return text
