"""The engine: one thread that is the only caller of the base models' forward pass.

`step()` schedules, runs and settles one step. Any thread may submit, wait and cancel. An exception in a step ends its
requests and nothing else.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache

from registry.adapters import bytes_in_memory
from registry.base_model import BaseText, LoadedBase, position_bytes
from registry.cores import ALL, use_cores
from registry.errors import Internal, SoupError, Unavailable
from service.engine.adapter_cache import AdapterCache
from service.engine.base_cache import BaseCache
from service.engine.draft import Draft, GenerationDraft, ScoreDraft, settle
from service.engine.eviction import Evictor
from service.engine.executor import Executor
from service.engine.fairness import AdmissionControl
from service.engine.grammars import Grammars
from service.engine.kv_budget import KVBudget
from service.engine.limits import EngineLimits
from service.engine.prefix_cache import PrefixCache
from service.engine.progress import as_soup_error, without_frames
from service.engine.request import GenerateRequest, Request, virtual_tokens
from service.engine.runner import Runner
from service.engine.runner_check import checked_runner
from service.engine.scheduler import Scheduler
from service.engine.steps import Owner, SequenceGroup, Step, Ticket, requested_bases
from service.engine.text_calls import STOPPING, BaseSource, EngineCalls

log = logging.getLogger("soup.engine")

MAX_RETRY_AFTER = 600
SPEED_SMOOTHING = 0.05
"""Weight of the newest step in the moving average of the speed, from which `retry_after` is computed."""
POLL_SECONDS = 0.1
"""How often the thread checks for cancelled requests while it waits for a base model."""

ADAPTER_SIZES = 1024
"""Configurations of adapters whose size in memory is remembered."""


class Engine(EngineCalls):
    """Scores and generates for the base models of `bases`, which are loaded on demand.

    A started engine loads weights in background threads, one that is only stepped loads them within the step.
    """

    def __init__(self, bases: BaseSource, limits: EngineLimits = EngineLimits()) -> None:
        super().__init__(bases)
        self._kv_budget = KVBudget(limits.kv_bytes, self._position_bytes)
        self._admission = AdmissionControl(limits.max_requests, limits.max_tokens)
        self._threads = limits.threads or ALL
        self._bases: BaseCache[Runner] = BaseCache(
            bases, limits.memory_bytes, self._notify, self._prepare, self._threads
        )
        self._scheduler = Scheduler(
            admission=self._admission,
            max_step_tokens=limits.max_step_tokens,
            max_running=limits.max_running,
            prefixes=PrefixCache(
                self._kv_budget, limits.share_prompts, lambda base_id: self._bases.peek(base_id).packed
            ),
            can_chunk=lambda base_id: self._source.text(base_id).shape.kind == "causal",
        )
        self._is_packed: dict[str, bool] = {}  # by base model, once loaded
        self._adapters = AdapterCache(
            limits.adapter_cache_bytes, lambda *adapter: self._evictor.adapter_budget(*adapter)
        )
        self._adapter_size = lru_cache(ADAPTER_SIZES)(
            lambda base_id, config: bytes_in_memory(config, self._source.text(base_id).shape)
        )
        self._drafts: dict[SequenceGroup, Draft] = {}
        self._grammars = Grammars()
        self._executor = Executor(self._adapters, self._drafts)
        self._changed = threading.Condition()  # guards the scheduler; notified of new requests and ended ones
        self._evictor = Evictor(self._scheduler.prefixes, self._adapters, self._bases, self._changed)
        self._bases.on_evict = self._evictor.evict_base
        self._thread: threading.Thread | None = None
        self._preloaded: Future[None] = Future()
        self._stop_at: float | None = None
        self._events = self._seen_events = 0  # requests and loads, and those the thread has seen; under `_changed`
        self._speed: float | None = None  # tokens a second, smoothed
        self._passed_at: dict[str | None, float] = {}  # last pass of each base model; under None, of any

    # --- from any thread ------------------------------------------------------------------------

    def _enqueue(self, requests: Sequence[Request]) -> list[Ticket]:
        owner = requests[0].owner if requests else None
        self.check_admission(owner, local=True)  # before drafts, of thousands of choices
        requests = [self._checked(request) for request in requests]
        drafts = [self._draft(request) for request in requests]
        with self._changed:
            if self._stop_at is not None:
                raise Unavailable(STOPPING)
            groups = self._scheduler.add(requests, self._retry_after)
            self._drafts.update(zip(groups, drafts, strict=True))
            self._events += 1
            self._changed.notify_all()
        return [group.ticket for group in groups]

    def check_admission(self, owner: Owner, *, local: bool = False) -> None:  # noqa: ARG002
        """See `EngineCalls`."""
        with self._changed:
            if self._stop_at is not None:
                raise Unavailable(STOPPING)
            self._admission.check(self._scheduler.groups(), owner, self._retry_after)

    def loaded_bases(self) -> tuple[str, ...]:
        """See `EngineCalls`."""
        return self._bases.loaded

    def is_packed(self, base_id: str) -> bool | None:
        """See `EngineCalls`."""
        return self._is_packed.get(base_id)

    def counters(self) -> dict[str, float]:
        """See `EngineCalls`; those whose names end in `_total` never fall."""
        with self._changed:
            scheduler = self._scheduler
            return {
                "requests": scheduler.depth,
                "requests_waiting": scheduler.waiting,
                "generating_rows": scheduler.generating,
                "adapters_held": len(self._adapters),
                "adapter_bytes": self._adapters.bytes,
                "adapter_loads_total": self._adapters.loads,
                "adapter_hits_total": self._adapters.hits,
                "adapter_evictions_total": self._adapters.evictions,
                "kv_bytes": self._kv_budget.bytes,
                "kept_bytes": scheduler.prefixes.bytes,
                "kept_texts": len(scheduler.prefixes),
                "bases_held": len(self._bases.loaded),
                "base_bytes": self._bases.bytes,
                "base_loads_total": self._bases.loads,
                **self._executor.counts,
                **{f"requests_{status}_total": count for status, count in self._ended_counts.items()},
            }

    def seconds_since_pass(self, base_id: str | None = None) -> float:
        """See `EngineCalls`."""
        return time.monotonic() - self._passed_at.get(base_id, -math.inf)

    def start(self, base_ids: Sequence[str] = ()) -> Future[None]:
        """See `EngineCalls`: starts the thread, which loads these base models before it serves."""
        if self._thread is not None:
            raise Internal("the engine was started already")
        self._adapters.start_background_loads(self._notify)
        self._thread = threading.Thread(target=self._run, args=(base_ids,), name="engine", daemon=True)
        self._thread.start()
        return self._preloaded

    @property
    def preloading(self) -> bool:
        """See `EngineCalls`."""
        return self._thread is not None and not self._preloaded.done()

    def stop(self, *, drain: float = 10.0, patience: float | None = None) -> bool:
        """See `EngineCalls`."""
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + drain
            self._events += 1
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(None if patience is None else drain + patience)
            if self._thread.is_alive():
                return False
        else:
            self._fail_all(Unavailable(STOPPING))
        self._adapters.close()
        self._bases.wait_for_load(drain)
        return True

    # --- the thread -----------------------------------------------------------------------------

    def _run(self, base_ids: Sequence[str]) -> None:
        use_cores(self._threads)
        try:
            self._preload(base_ids)
            while self._wait_for_requests():
                try:
                    if not self.step():
                        self._wait_for_event()
                except Exception:
                    log.exception("the engine's step failed")
                    self._fail_all(Internal("The engine failed; the server's log says where."))
        finally:
            self._fail_all(Unavailable(STOPPING))

    def _preload(self, base_ids: Sequence[str]) -> None:
        """Load these base models, in this order, as many as fit."""
        try:
            for error in self._bases.update(dict.fromkeys(base_ids, 0), frozenset(), background=False).values():
                raise error
        except Exception as error:
            self._preloaded.set_exception(error)
        else:
            self._preloaded.set_result(None)

    def _wait_for_requests(self) -> bool:
        """Block until there is a request; return False when it is time to stop."""
        if not self._scheduler.depth:  # only this thread reduces it
            try:
                self._evictor.free_unused({})
            except Exception:  # the next step tries again
                log.exception("freeing the memory of ended requests failed")
        with self._changed:
            if not self._scheduler.depth:
                self._changed.wait_for(lambda: self._scheduler.depth > 0 or self._stop_at is not None)
                self._passed_at[None] = time.monotonic()
            return self._stop_at is None or (self._scheduler.depth > 0 and time.monotonic() < self._stop_at)

    def _wait_for_event(self) -> None:
        """Block while nothing can run: until a load ends, or briefly, since requests may be cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._events != self._seen_events, POLL_SECONDS)

    def _prepare(self, base: LoadedBase) -> Runner:
        """The runner of a loaded base model. Called by the loading thread."""
        runner = checked_runner(base)
        self._evictor.limit_runner(runner)
        self._is_packed[base.entry.id] = runner.packed
        return runner

    def _notify(self) -> None:
        """Wake up the engine's thread: a base model or an adapter is loaded. Called by the loading thread."""
        with self._changed:
            self._events += 1
            self._changed.notify_all()

    def step(self) -> bool:
        """Run one step; return False if nothing can run now. Called by the thread, or by tests without a thread."""
        self._update_caches()
        with self._changed:
            step = self._scheduler.next_step(
                self._bases.ready,
                adapter_bytes=self._evictor.adapter_bytes,
                prefetch_adapter=self._prefetch_adapter,
            )
            running = self._scheduler.sequences_with_rows()
        if step is None:
            return False
        self._evictor.free_unused(running)  # memory of preempted sequences, before the step allocates its own
        started_at = time.perf_counter()
        try:
            finished, failures = self._executor.run(step, self._bases.use(step.base_id), running, self._mark_computed)
        except Exception as error:
            finished, failures = [], [(group, error) for group in step.groups]
        self._passed_at |= dict.fromkeys((None, step.base_id), time.monotonic())
        seconds = time.perf_counter() - started_at
        speed = step.tokens / max(seconds, 1e-6)
        self._speed = speed if self._speed is None else self._speed + SPEED_SMOOTHING * (speed - self._speed)
        decodes = sum(segment.output == "next" and segment.length == 1 for segment in step.segments)
        errors = [(group, without_frames(as_soup_error(error))) for group, error in failures]
        with self._changed:
            self._scheduler.step_times.record(step.base_id, seconds, decodes=decodes, prefills=step.tokens - decodes)
            ended = [group for failed, error in errors for group in self._scheduler.fail([failed], error)]
            ended += self._scheduler.finish(finished)
        self._settle(ended)
        return True

    def _prefetch_adapter(self, group: SequenceGroup) -> bool:
        """Start loading a request's adapter where it is not loaded; return True if it can be used now."""
        adapter = group.request.adapter
        return adapter is None or self._adapters.prefetch(self._bases.peek(group.base_id), adapter)

    def _mark_computed(self, step: Step) -> None:
        with self._changed:
            self._scheduler.mark_computed(step)

    def _update_caches(self) -> None:
        """End cancelled requests, then load and evict base models and adapters for the others."""
        with self._changed:
            ended = self._scheduler.drop_cancelled()
            groups, running = self._scheduler.groups(), self._scheduler.sequences_with_rows()
            self._seen_events = self._events
        self._settle(ended)
        self._evictor.free_unused(running)
        running_groups = [sequence.group for sequences in running.values() for sequence in sequences]
        requested = requested_bases(groups, running_groups)
        failed = self._bases.update(requested, set(running), background=self._thread is not None)
        self._evictor.evict_adapters(_digests(groups), _digests(running_groups))
        for base_id, error in failed.items():
            with self._changed:
                ended = self._scheduler.fail([g for g in self._scheduler.groups() if g.base_id == base_id], error)
            self._settle(ended)

    # --- results --------------------------------------------------------------------------------

    def _checked(self, request: Request) -> Request:
        """A request that its base model can compute, with the size of its adapter in memory; raises where it cannot."""
        base, adapter = self._source.text(request.base_id), request.adapter
        self._bases.check(request.base_id)
        request.check(base.shape)
        if adapter is None:
            return request
        size = self._adapter_size(request.base_id, adapter.config)
        self._adapters.check(adapter.digest, size)
        return replace(request, adapter=replace(adapter, size_bytes=size))

    def _draft(self, request: Request) -> Draft:
        """The empty draft of a request."""
        base = self._source.text(request.base_id)
        if isinstance(request, GenerateRequest):
            return GenerationDraft.of(request, base, self._length_limit(request, base), self._grammars)
        prefix = virtual_tokens(request)
        if prefix:
            self._kv_budget.check(request.base_id, prefix + max(map(len, request.windows)), param="prompt")
        return ScoreDraft(request, has_likelihood=base.shape.kind == "causal")

    def _length_limit(self, request: GenerateRequest, base: BaseText) -> int:
        """The most tokens a choice may get: `max_tokens`, or what context and memory leave."""
        prompt, max_tokens = virtual_tokens(request) + len(request.prompt), request.params.max_tokens
        self._kv_budget.check(request.base_id, prompt + max(1, max_tokens or 0), param="max_tokens")
        limit, max_positions = request.length_limit(base.shape), self._kv_budget.max_positions(request.base_id)
        return limit if max_positions is None or max_tokens is not None else min(limit, max_positions - prompt)

    def _position_bytes(self, base_id: str) -> int:
        text = self._source.text(base_id)
        return position_bytes(text.entry, text.shape)

    def _settle(self, ended: Iterable[SequenceGroup]) -> None:
        """Set the results of ended requests, outside of the lock, because code that waits for a ticket may submit
        again.
        """
        for group in ended:
            draft = self._drafts.pop(group)
            self._ended_counts[group.state.value] += 1
            timeline = draft.report_end(group, group.state.value, draft.token_counts())
            self.adapter_metrics.add(group.request, timeline)
            settle(group, draft)
        with self._changed:
            self._changed.notify_all()

    def _fail_all(self, error: SoupError) -> None:
        with self._changed:
            ended = self._scheduler.drop_cancelled()
            ended += self._scheduler.fail(self._scheduler.groups(), error)
        self._settle(ended)

    def _retry_after(self, tokens: int) -> int:
        """Seconds to compute this number of tokens at the present speed."""
        seconds = 0.0 if self._speed is None else tokens / self._speed
        return min(MAX_RETRY_AFTER, max(1, math.ceil(seconds)))


def _digests(groups: Iterable[SequenceGroup]) -> set[str]:
    return {group.digest for group in groups if group.digest is not None}
