"""The engine: one thread that is the only caller of the base models' forward pass.

`step()` is schedule, run, settle; everything else hands requests in or answers out. Any thread may submit, wait and
cancel. An exception in a batch is the end of its requests and of nothing else.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from registry import cores
from registry.base_model import BaseText, LoadedBase
from registry.errors import Internal, SoupError, Unavailable
from service.engine.adapter_cache import AdapterCache
from service.engine.adapter_metrics import AdapterMetrics, AdapterTotals
from service.engine.base_cache import BaseCache, BaseSource
from service.engine.draft import Draft, GenerationDraft, ScoreDraft, answer, as_soup, without_frames
from service.engine.eviction import Evictor
from service.engine.executor import Executor
from service.engine.key_quotas import AdmissionControl
from service.engine.kv_budget import KVBudget
from service.engine.prefix_cache import PrefixCache, PrefixSharing
from service.engine.request import GenerateRequest, Request, State, tokens_before
from service.engine.runner import Runner
from service.engine.runner_check import checked_runner
from service.engine.scheduler import Scheduler
from service.engine.steps import Owner, SequenceGroup, Step, Ticket, requested_bases
from service.engine.text_calls import TextCalls

log = logging.getLogger(__name__)

MAX_RETRY_AFTER = 600
SMOOTH = 0.05
"""Share of the newest step in the speed that is told to those who have to come back."""
CORES_KEPT_SECONDS = 0.05
"""How long the thread keeps all cores for itself when there is no more work."""
POLL_SECONDS = 0.1
"""How often the thread looks for cancelled requests while it waits for a base model."""
STOPPING = "The server is shutting down; try again when it is back."


class Engine(TextCalls):
    """Scores and generates for the base models of `bases`, which are loaded on demand.

    Limits: `max_queue` requests of `max_queue_tokens` tokens are admitted at once (`AdmissionControl`); `memory_bytes`
    is for the weights of base models and adapters together, `kv_bytes` for keys and values of running sequences and of
    cached prefixes (None: no limit, and no prefix is cached); the others are the scheduler's and the adapter cache's.
    `share_prompts` says between which keys cached prefixes are shared. A started engine loads weights in background
    threads, one that is only stepped loads them within the step.
    """

    def __init__(
        self,
        bases: BaseSource,
        *,
        max_queue: int = 256,
        max_queue_tokens: float = math.inf,
        max_step_tokens: int = 2048,
        max_rows: int = 16,
        bank_bytes: int = 512 * 2**20,
        kv_bytes: int | None = None,
        share_prompts: PrefixSharing = "namespace",
        memory_bytes: int | None = None,
    ) -> None:
        self._bases = bases
        self._space = KVBudget(kv_bytes, self._position_bytes)
        self._queue = AdmissionControl(max_queue, max_queue_tokens)
        self._scheduler = Scheduler(
            queue=self._queue, max_step_tokens=max_step_tokens, max_rows=max_rows, space=self._space,
            kept=PrefixCache(self._space, share_prompts, lambda base_id: self._residence.peek(base_id).packed),
            in_pieces=lambda base_id: self._bases.text(base_id).shape.kind == "causal",
        )  # fmt: skip
        self._packed: dict[str, bool] = {}  # of each base model that was loaded
        self._residence: BaseCache[Runner] = BaseCache(bases, memory_bytes, self._tell, self._try)
        self._bank = AdapterCache(bank_bytes, lambda *of: self._upkeep.room_for_adapters(*of))
        self._drafts: dict[SequenceGroup, Draft] = {}
        self._tally = AdapterMetrics()
        self._executor = Executor(self._bank, self._drafts, self._tally)
        self._changed = threading.Condition()  # guards the scheduler; told of work coming and of places getting free
        self._upkeep = Evictor(
            self._space, self._scheduler.kept, self._bank, self._residence, self._changed, self._position_bytes
        )
        self._residence.forget = self._upkeep.forget
        self._thread: threading.Thread | None = None
        self._preloaded: Future[None] = Future()
        self._stop_at: float | None = None
        self._news = self._seen = 0  # the first counts up when the thread should look again; under `_changed`
        self._speed: float | None = None  # tokens that are computed in a second, smoothed
        self._passed_at: dict[str | None, float] = {}  # the last pass of each base model; under None, of any
        self._ends = dict.fromkeys(("finished", "failed", "cancelled"), 0)

    # --- from any thread ------------------------------------------------------------------------

    def submit(self, request: Request) -> Ticket:
        """Queue one request; raises InvalidPrompt, InvalidParameter, Busy, or Unavailable while stopping."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Ticket]:
        """Queue all of these requests or none; raises as `submit`."""
        try:
            return self._queued(requests)
        except BaseException:
            for request in requests:
                if request.on_end is not None:
                    request.on_end(0, 0)
            raise

    def _queued(self, requests: Sequence[Request]) -> list[Ticket]:
        self.check_place(requests[0].owner if requests else None, here=True)  # before drafts, of thousands of choices
        drafts = [self._draft(request) for request in requests]
        with self._changed:
            if self._stop_at is not None:
                raise Unavailable(STOPPING)
            groups = self._scheduler.add(requests, retry_after=self._retry_after)
            self._drafts.update(zip(groups, drafts, strict=True))
            self._news += 1
            self._changed.notify_all()
        return [group.ticket for group in groups]

    def check_place(self, owner: Owner, *, here: bool = False) -> None:  # noqa: ARG002
        """Raises Busy where there is no place for a key, and Unavailable while stopping.

        `here` is for what this process computes in any case, as scores: an engine that sends others away counts both.
        """
        with self._changed:
            if self._stop_at is not None:
                raise Unavailable(STOPPING)
            self._queue.check(self._scheduler.live(), owner, self._retry_after)

    def base(self, base_id: str) -> BaseText:
        """Tokenizer and shape of the base model of that id, without its weights."""
        return self._bases.text(base_id)

    def bases_held(self) -> tuple[str, ...]:
        """Ids of the base models in memory, least recently used first."""
        return self._residence.held

    def packed(self, base_id: str) -> bool | None:
        """Whether the sequences of a base model run packed in one pass or one by one; None before it is loaded."""
        return self._packed.get(base_id)

    def preload(self, base_ids: Sequence[str]) -> None:
        """Load these base models, in this order, as many as fit; before `start`. Raises what loading raises."""
        for error in self._residence.arrange(dict.fromkeys(base_ids, 0), frozenset(), background=False).values():
            raise error

    def wait_for_place(self, seconds: float) -> None:
        """Return when the queue has a place, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop_at or not self._queue.is_full(self._scheduler.live()), seconds)

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
                "adapter_hits_total": self._bank.hits,
                "adapter_evictions_total": self._bank.evictions,
                "kv_bytes": self._space.bytes,
                "kept_bytes": scheduler.kept.bytes,
                "kept_texts": len(scheduler.kept),
                "bases_held": len(self._residence.held),
                "base_bytes": self._residence.bytes,
                "base_loads_total": self._residence.loads,
                **self._executor.counts,
                **{f"requests_{end}_total": count for end, count in self._ends.items()},
            }

    def seconds_since_pass(self, base_id: str | None = None) -> float:
        """Seconds since a pass of this base model ended (None: of any, or since there was nothing to do)."""
        return time.monotonic() - self._passed_at.get(base_id, -math.inf)

    def by_adapter(self) -> dict[str, AdapterTotals]:
        """Figures for /metrics by adapter digest, with `base` and `other`; none of them ever falls."""
        return self._tally.figures()

    def start(self, base_ids: Sequence[str] = ()) -> Future[None]:
        """Start the thread, which preloads these base models before it serves; an engine starts once.

        The future ends when they are loaded, with what loading raises. Requests wait meanwhile.
        """
        if self._thread is not None:
            raise Internal("the engine was started already")
        self._bank.load_beside(self._tell)
        self._thread = threading.Thread(target=self._loop, args=(base_ids,), name="engine", daemon=True)
        self._thread.start()
        return self._preloaded

    @property
    def preloading(self) -> bool:
        """True while a started engine loads its first base models."""
        return self._thread is not None and not self._preloaded.done()

    def stop(self, *, drain: float = 10.0, patience: float | None = None) -> bool:
        """Take no more requests, finish those held within `drain` seconds, and end the others with Unavailable.

        A step that is computed when that time is over is waited for, at most `patience` seconds; False if it goes on.
        """
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + drain
            self._news += 1
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(None if patience is None else drain + patience)
            if self._thread.is_alive():
                return False
        else:
            self._fail_all(Unavailable(STOPPING))
        self._bank.close()
        self._residence.wait(drain)
        return True

    # --- the thread -----------------------------------------------------------------------------

    def _loop(self, base_ids: Sequence[str]) -> None:
        cores.take_all()
        try:
            self._preload_first(base_ids)
            while self._wait_for_work():
                try:
                    if not self.step():
                        self._wait_for_news()
                except Exception:
                    log.exception("the engine's step failed")
                    self._fail_all(Internal("The engine failed; the server's log says where."))
        finally:
            cores.release_all()
            self._fail_all(Unavailable(STOPPING))

    def _preload_first(self, base_ids: Sequence[str]) -> None:
        try:
            self.preload(base_ids)
        except Exception as error:
            self._preloaded.set_exception(error)
        else:
            self._preloaded.set_result(None)

    def _give_up_the_rest(self) -> None:
        """Give up what ended requests leave when none is left. It may fail: the next step does it again."""
        try:
            self._upkeep.tidy({})
        except Exception:
            log.exception("giving up what ended requests leave failed")

    def _wait_for_work(self) -> bool:
        """Block until there is something to run; False when it is time to stop."""
        if not self._scheduler.depth:  # only this thread makes it smaller
            self._give_up_the_rest()
        with self._changed:
            if not self._scheduler.depth:
                if not self._changed.wait_for(self._is_wanted, CORES_KEPT_SECONDS):
                    cores.release_all()
                    self._changed.wait_for(self._is_wanted)
                    cores.take_all()
                self._passed_at[None] = time.monotonic()
            return self._stop_at is None or (self._scheduler.depth > 0 and time.monotonic() < self._stop_at)

    def _is_wanted(self) -> bool:
        return self._scheduler.depth > 0 or self._stop_at is not None

    def _wait_for_news(self) -> None:
        """Block while nothing can run: base models are being loaded, or a request was cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._news != self._seen, POLL_SECONDS)

    def _try(self, base: LoadedBase) -> Runner:
        """The runner of a base model that was loaded. Called by the thread that loaded it."""
        runner = checked_runner(base)
        self._upkeep.watch(runner)
        self._packed[base.entry.id] = runner.packed
        return runner

    def _tell(self) -> None:
        """A base model or an adapter is there. Called by the thread that loaded it."""
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    def step(self) -> bool:
        """Run the batch whose turn it is; False when nothing can run now. The thread calls this, or a test."""
        self._arrange()
        with self._changed:
            step = self._scheduler.next(
                self._residence.ready, adapter_bytes=self._upkeep.adapter_bytes, loaded=self._adapter_is_there
            )
            alive = self._scheduler.alive()
        if step is None:
            return False
        self._upkeep.tidy(alive)  # what gave its room to the step goes before the step takes it
        began = time.perf_counter()
        try:
            done, failures = self._executor.run(step, self._residence.base(step.base_id), self._computed)
        except Exception as error:
            done, failures = [], [(group, error) for group in step.groups]
        self._passed_at |= dict.fromkeys((None, step.base_id), time.monotonic())
        seconds = time.perf_counter() - began
        speed = step.tokens / max(seconds, 1e-6)
        self._speed = speed if self._speed is None else self._speed + SMOOTH * (speed - self._speed)
        newest = sum(segment.wants == "next" and segment.length == 1 for segment in step.segments)
        errors = [(culprit, without_frames(as_soup(failure))) for culprit, failure in failures]
        with self._changed:
            self._scheduler.pace.took(step.base_id, seconds, newest=newest, others=step.tokens - newest)
            ended = [group for culprit, error in errors for group in self._scheduler.fail([culprit], error)]
            ended += self._scheduler.finish(done)
        self._settle(ended)
        return True

    def _adapter_is_there(self, group: SequenceGroup) -> bool:
        """Whether a request whose turn it is has its adapter; if not, it is loaded now."""
        adapter = group.request.adapter
        return adapter is None or self._bank.ready(self._residence.peek(group.key[0]), adapter)

    def _computed(self, part: Step) -> None:
        """Keys and values of a part of the running step are kept."""
        with self._changed:
            self._scheduler.computed(part)

    def _arrange(self) -> None:
        """End what was cancelled, then see to it that the base models are there for what is wanted."""
        with self._changed:
            ended = self._scheduler.drop_cancelled()
            wanted, alive = requested_bases(self._scheduler.live()), self._scheduler.alive()
            digests = {group.key[1] for group in self._scheduler.live() if group.key[1] is not None}
            self._seen = self._news
        self._settle(ended)
        self._upkeep.tidy(alive)
        failed = self._residence.arrange(wanted, set(alive), background=self._thread is not None)
        self._upkeep.trim(
            digests, {one.group.key[1] for of in alive.values() for one in of if one.group.key[1] is not None}
        )
        if failed:
            with self._changed:
                live = self._scheduler.live()
                ended = [
                    group
                    for base_id, error in failed.items()
                    for group in self._scheduler.fail([one for one in live if one.key[0] == base_id], error)
                ]
            self._settle(ended)

    # --- answers --------------------------------------------------------------------------------

    def _draft(self, request: Request) -> Draft:
        """Check a request against its base model and lay out its answer."""
        base = self._bases.text(request.base_id)
        self._residence.check(request.base_id)
        request.check(base.shape)
        if request.adapter is not None:
            self._bank.check(request.adapter.digest, request.adapter.size_bytes)
        if not isinstance(request, GenerateRequest):
            if tokens_before(request):
                longest = tokens_before(request) + max(map(len, request.windows))
                self._space.check(request.base_id, longest, param="prompt")
            return ScoreDraft(request, speaks=base.shape.kind == "causal")
        return GenerationDraft.of(request, base, self._length_limit(request, base))

    def _length_limit(self, request: GenerateRequest, base: BaseText) -> int:
        """The most tokens a choice may get: what it asks for, or what context and memory leave."""
        taken, asked = tokens_before(request) + len(request.prompt), request.params.max_tokens
        self._space.check(request.base_id, taken + max(1, asked or 0), param="max_tokens")
        limit, most = request.length_limit(base.shape), self._space.most(request.base_id)
        return limit if most is None or asked is not None else min(limit, most - taken)

    def _position_bytes(self, base_id: str) -> int:
        return self._bases.text(base_id).position_bytes

    def _settle(self, ended: Iterable[SequenceGroup]) -> None:
        """Answer requests that have ended, outside of the lock: what waits for a ticket may submit again."""
        for group in ended:
            draft = self._drafts.pop(group)
            self._ends[group.state.value] += 1
            if group.state is State.FINISHED:
                self._tally.answered(group.key[1], time.monotonic() - draft.came)
            answer(group, draft)
        with self._changed:
            self._changed.notify_all()

    def _fail_all(self, error: SoupError) -> None:
        with self._changed:
            ended = self._scheduler.drop_cancelled()
            ended += self._scheduler.fail(self._scheduler.live(), error)
        self._settle(ended)

    def _retry_after(self, tokens: int) -> int:
        """Seconds in which so many tokens are computed at the present speed."""
        seconds = 0.0 if self._speed is None else tokens / self._speed
        return min(MAX_RETRY_AFTER, max(1, math.ceil(seconds)))
