"""The verb that evaluates the adapters of a pool on each other's samples, each against the base model.

Called by the job. Stored evaluations are not repeated, so that an interrupted job resumes, and a pool that has grown
costs only what is new. The pair of an adapter and its own sample is optimistic: it was mostly trained on text like it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from registry.catalogue.evaluations import NewEvaluation
from registry.catalogue.rows import AdapterRow
from registry.context import BaseModel, Caller, Registry
from registry.errors import DamagedBlob, Incompatible, Internal, InvalidParameter, InvalidWeights, NotFound, TooLarge
from registry.progress import Progress
from registry.select.pools import check_not_empty, members_of
from registry.spec import AdapterConfig, BaseEntry, Passage, PassageScore, PoolSpec
from registry.spec.passage import decode_lines
from registry.stored.adapters import loadable
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, TaskLost, Watch
from registry.uncertainty import paired_difference

MAX_ADAPTERS = 100
"""The most adapters of a pool that is evaluated: ten thousand pairs."""
MIN_PASSAGES = 2
"""The least passages of a sample to evaluate on: one gives no standard error."""
RECORDED_ERRORS = (DamagedBlob, Incompatible, Internal, InvalidParameter, InvalidWeights, NotFound)
"""Errors of one adapter or sample, which are recorded and do not stop the evaluation of others."""


@dataclass(frozen=True)
class CrossEvaluated:
    """Numbers of pairs; `failed` has error messages by the ref of an adapter that could not be run or sampled."""

    pairs: int
    computed: int
    known: int
    failed: dict[str, str]


@dataclass(frozen=True)
class ToScore:
    """The argument of a task: score the samples of these digests with an adapter, or the base model alone.

    Tasks share the texts by digest.
    """

    entry: BaseEntry
    fingerprint: str
    threads: int
    samples: tuple[str, ...]
    adapter: tuple[str, AdapterConfig, bytes] | None = None
    """Its digest, its configuration, and its weights as stored."""


Scores = list[list[PassageScore]]
"""Scores by sample and passage."""
Texts = Mapping[str, Sequence[Passage]]
"""The passages of samples by their digests."""
Group = tuple[AdapterRow | None, Sequence[AdapterRow]]
"""An adapter, None for the base model alone, and the adapters on whose samples it is scored."""
Scored = tuple[AdapterRow | None, AdapterRow, Sequence[PassageScore]]
"""An adapter or None, and its scores on the sample of an adapter, by passage."""


@dataclass(frozen=True)
class EvaluationPool:
    """A pool of processes or machines to evaluate on, and the function that scores samples there."""

    pool: Pool
    score: Callable[[ToScore, Watch], Scores]
    threads: int


@dataclass(frozen=True)
class Pair:
    """An adapter and the adapter whose sample it is evaluated on."""

    adapter: AdapterRow
    sampled: AdapterRow

    @property
    def sample(self) -> str:
        """The digest of the sample."""
        return _sample(self.sampled)


@dataclass(frozen=True)
class Pairs:
    """A pool's members, those that represent a sample with text, and the pairs to compute, ordered by sample."""

    members: tuple[AdapterRow, ...]
    sampled: tuple[AdapterRow, ...]
    missing: tuple[Pair, ...]

    @property
    def count(self) -> int:
        """The number of all pairs."""
        return len(self.members) * len(self.sampled)


def pairs_of(registry: Registry, pool: PoolSpec, *, passages: int) -> Pairs:
    """The pairs of a pool; a pair is stored already if evaluated on as many passages, or on all of the sample.

    Raises InvalidParameter or Unavailable for an empty pool, TooLarge for too many adapters.
    """
    with registry.database.read() as catalogue:
        pooled = members_of(catalogue, pool, None).rows
        check_not_empty(catalogue, pool, pooled)
        if len(pooled) > MAX_ADAPTERS:
            raise TooLarge(
                f"The pool has {len(pooled)} adapters; the maximum for an evaluation is {MAX_ADAPTERS}: filter it "
                "by namespace, method or tag.",
                param="pool",
            )
        members = [row for adapter in pooled if (row := catalogue.adapters.get_or_none(adapter.id)) is not None]
        with_text = [
            row for row in members if row.sample is not None and row.sample.has_text and row.sample.kept >= MIN_PASSAGES
        ]
        sampled = {_sample(row): row for row in with_text}
        evaluated = catalogue.evaluations.passages({row.digest for row in members}, set(sampled))
    missing = []
    for sample, row in sampled.items():
        available = 0 if row.sample is None else row.sample.kept
        missing += [
            Pair(adapter, row)
            for adapter in members
            if evaluated.get((adapter.digest, sample), 0) < min(passages, available)
        ]
    return Pairs(tuple(members), tuple(sampled.values()), tuple(missing))


def cross_evaluate(
    registry: Registry,
    caller: Caller,
    base: BaseModel,
    pool: PoolSpec,
    *,
    passages: int,
    progress: Progress,
    workers: EvaluationPool | None = None,
) -> CrossEvaluated:
    """Evaluate the missing pairs of a pool on the first `passages` of each sample, and store each when computed.

    The base model alone is scored first, then adapter by adapter; errors of an adapter or a sample are recorded. With
    `workers` only the base model's entry and shape are used here, and all pairs of an adapter are stored together.
    `progress` may raise to cancel. Raises as `pairs_of`, the base model's `score` and the pool of workers do.
    """
    pairs = pairs_of(registry, pool, passages=passages)
    run = _Run(registry, caller, base, passages, progress, total=len(pairs.missing))
    sampled = {pair.sample: pair.sampled for pair in pairs.missing}
    texts = run.read_texts(sampled.values())
    score = partial(_score_here, run, texts) if workers is None else partial(_score_on_workers, run, texts, workers)
    for _, row, scores in score([(None, [sampled[digest]]) for digest in texts]):
        run.add_base_scores(row, scores)
    scorable = [pair for pair in pairs.missing if pair.sample in run.base_scores]
    run.done = run.total - len(scorable)
    samples: dict[int, list[AdapterRow]] = {}
    for pair in scorable:
        samples.setdefault(pair.adapter.id, []).append(pair.sampled)
    adapters = {pair.adapter.id: pair.adapter for pair in scorable}
    for adapter, row, scores in score([(adapters[key], samples[key]) for key in adapters]):
        assert adapter is not None
        try:
            run.store(Pair(adapter, row), scores)
            run.done += 1
        except RECORDED_ERRORS as error:
            run.fail(adapter, [row], error.message)
    return CrossEvaluated(pairs.count, run.computed, pairs.count - len(pairs.missing), run.failed)


@dataclass
class _Run:
    """An evaluation of `total` pairs: how to read samples and store results, and what was done so far."""

    registry: Registry
    caller: Caller
    base: BaseModel
    passages: int
    progress: Progress
    total: int
    done: int = 0
    message: str = ""
    computed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    base_scores: dict[str, Sequence[PassageScore]] = field(default_factory=dict)
    """Scores of the base model alone by the digest of the sample."""

    def report(self, *_: object) -> None:
        """Report progress, whatever the arguments; raises what `progress` raises."""
        self.progress(self.done, self.total, self.message)

    def should_stop(self) -> bool:
        """Report progress between tasks; returns False, as a stop is raised."""
        self.report()
        return False

    def read_texts(self, rows: Iterable[AdapterRow]) -> Texts:
        """The first passages of the samples of `rows`; a damaged sample is recorded and left out."""
        texts = {}
        for row in rows:
            try:
                texts[_sample(row)] = decode_lines(self.registry.blobs.read(_sample(row)))[: self.passages]
            except RECORDED_ERRORS as error:
                self.fail(None, [row], error.message)
        return texts

    def fail(self, adapter: AdapterRow | None, samples: Sequence[AdapterRow], message: str) -> None:
        """Record why an adapter cannot be scored on `samples`, or, where it is None, why the samples cannot."""
        if adapter is None:
            self.failed.update((row.ref, message) for row in samples)
        else:
            self.failed[adapter.ref] = message
            self.done += len(samples)

    def add_base_scores(self, row: AdapterRow, scores: Sequence[PassageScore]) -> None:
        """Add the base model's scores of a sample; one with too few passages to score is recorded."""
        scored = sum(score.tokens > 0 for score in scores)
        if scored >= MIN_PASSAGES:
            self.base_scores[_sample(row)] = scores
            return
        message = (
            f"Only {scored} of the first {len(scores)} passages of the sample can be scored, and an "
            f"evaluation needs {MIN_PASSAGES}: push a sample with longer texts."
        )
        self.fail(None, [row], message)

    def store(self, pair: Pair, scores: Sequence[PassageScore]) -> None:
        """Store the evaluation of a pair, unless the adapter or the sample was purged."""
        nll = np.array([score.nll for score in scores])
        base_nll = np.array([score.nll for score in self.base_scores[pair.sample]])
        tokens = np.array([score.tokens for score in scores])
        evaluation = NewEvaluation(
            adapter_digest=pair.adapter.digest,
            sample_digest=pair.sample,
            passages=len(scores),
            tokens=int(tokens.sum()),
            nll=float(nll.sum()),
            base_nll=float(base_nll.sum()),
            created_by=self.caller.key_id,
            standard_error=paired_difference(nll, base_nll, tokens).standard_error,
        )
        with self.registry.database.write() as catalogue:
            if None not in (
                catalogue.adapters.get_or_none(pair.adapter.id),
                catalogue.adapters.get_or_none(pair.sampled.id),
            ):
                catalogue.evaluations.put(evaluation)
                self.computed += 1


def _score_here(run: _Run, texts: Texts, groups: Iterable[Group]) -> Iterator[Scored]:
    """Score groups in this process; an error in a group is recorded, and ends the group."""
    for adapter, samples in groups:
        loaded = None if adapter is None else loadable(adapter, run.registry.blobs)
        scored = 0
        try:
            for row in samples:
                run.message = f"{_label(adapter)} on {row.domain}"
                run.report()
                yield adapter, row, run.base.score(texts[_sample(row)], loaded, progress=run.report)
                scored += 1
        except RECORDED_ERRORS as error:
            run.fail(adapter, samples[scored:], error.message)


def _score_on_workers(run: _Run, texts: Texts, workers: EvaluationPool, groups: Iterable[Group]) -> Iterator[Scored]:
    """Score groups on workers, a task each; the error of a task, and the loss of its process, are recorded."""
    started: list[Group] = []

    def tasks() -> Iterator[Task]:
        for adapter, samples in groups:
            stored = None
            if adapter is not None:
                try:
                    stored = adapter.digest, adapter.config, run.registry.blobs.read(adapter.weights_blob)
                except RECORDED_ERRORS as error:
                    run.fail(adapter, samples, error.message)
                    continue
            started.append((adapter, samples))
            digests = tuple(_sample(row) for row in samples)
            base = run.base
            yield Task(ToScore(base.entry, base.shape.fingerprint, workers.threads, digests, stored), texts)

    run.message = "waiting for the first task"
    for index, outcome in run_tasks(workers.pool, workers.score, tasks(), should_stop=run.should_stop):
        adapter, samples = started[index]
        run.message = _label(adapter)
        if isinstance(outcome, (*RECORDED_ERRORS, TaskLost)):
            run.fail(adapter, samples, outcome.message)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            for row, scores in zip(samples, outcome, strict=True):
                yield adapter, row, scores


def _label(adapter: AdapterRow | None) -> str:
    """The name of an adapter, or of the base model alone, in messages of progress."""
    return "the base model" if adapter is None else adapter.ref


def _sample(row: AdapterRow) -> str:
    """The digest of an adapter's sample."""
    assert row.sample is not None
    return row.sample.digest
