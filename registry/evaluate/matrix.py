"""The verb that evaluates the adapters of a pool on each other's samples, each against the base model.

Called by the job. Stored evaluations are not repeated, so that an interrupted job resumes, and a pool that has grown
costs only what is new. The pair of an adapter and its own sample is optimistic: it was mostly trained on text like it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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

WAITING = "waiting for the first task"


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

    With `workers` only the base model's entry and shape are used here, and all pairs of an adapter are stored together.
    `progress` may raise to cancel. Raises as `pairs_of`, the base model's `score` and the pool of workers do.
    """
    pairs = pairs_of(registry, pool, passages=passages)
    run = _Run(registry, caller, base, passages, progress, total=len(pairs.missing))
    if workers is None:
        _evaluate_here(run, pairs.missing)
    else:
        _WorkerEvaluation(run, workers).evaluate(pairs.missing)
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
    message: str = WAITING
    computed: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def report(self, *_: object) -> None:
        """Report progress, whatever the arguments; raises what `progress` raises."""
        self.progress(self.done, self.total, self.message)

    def should_stop(self) -> bool:
        """Report progress between tasks; returns False, as a stop is raised."""
        self.report()
        return False

    def texts_of(self, row: AdapterRow) -> list[Passage]:
        """The first passages of an adapter's sample."""
        return decode_lines(self.registry.blobs.read(_sample(row)))[: self.passages]

    def score_sample(self, row: AdapterRow) -> tuple[list[Passage], Sequence[PassageScore]]:
        """The first passages of an adapter's sample, and their scores by the base model alone."""
        texts = self.texts_of(row)
        base_scores = self.base.score(texts, None, progress=self.report)
        _check_scored(base_scores)
        return texts, base_scores

    def store(self, pair: Pair, scores: Sequence[PassageScore], base_scores: Sequence[PassageScore]) -> None:
        """Store the evaluation of a pair, unless the adapter or the sample was purged."""
        nll = np.array([score.nll for score in scores])
        base_nll = np.array([score.nll for score in base_scores])
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


def _evaluate_here(run: _Run, pairs: Iterable[Pair]) -> None:
    """Evaluate pairs, ordered by sample, in this process; adapters and samples with an error are skipped."""
    sample: str | None = None
    texts: Sequence[Passage] = ()
    base_scores: Sequence[PassageScore] = ()
    broken: set[str] = set()
    unreadable: set[str] = set()
    for done, pair in enumerate(pairs):
        run.done = done
        run.message = f"{pair.adapter.ref} on {pair.sampled.domain}"
        run.report()
        if pair.adapter.ref in broken or pair.sampled.ref in unreadable:
            continue
        try:
            if sample != pair.sample:
                texts, base_scores = run.score_sample(pair.sampled)
                sample = pair.sample
        except RECORDED_ERRORS as error:
            run.failed[pair.sampled.ref] = error.message
            unreadable.add(pair.sampled.ref)
            continue
        try:
            scores = run.base.score(texts, loadable(pair.adapter, run.registry.blobs), progress=run.report)
            run.store(pair, scores, base_scores)
        except RECORDED_ERRORS as error:
            run.failed[pair.adapter.ref] = error.message
            broken.add(pair.adapter.ref)


@dataclass(frozen=True)
class _WorkerEvaluation:
    """Evaluates pairs on workers: first a task a sample for the base model alone, then a task an adapter."""

    run: _Run
    workers: EvaluationPool

    def evaluate(self, pairs: Sequence[Pair]) -> None:
        """Evaluate pairs; adapters and samples with an error are recorded and skipped."""
        run = self.run
        sampled = {pair.sample: pair.sampled for pair in pairs}
        texts = self._read_texts(sampled)
        base_scores = self._score_base(texts, sampled)
        by_adapter: dict[str, list[Pair]] = {}
        for pair in pairs:
            if pair.sample in base_scores:
                by_adapter.setdefault(pair.adapter.digest, []).append(pair)
        run.done, run.message = len(pairs) - sum(map(len, by_adapter.values())), WAITING
        started: list[list[Pair]] = []
        tasks = self._adapter_tasks(by_adapter.values(), texts, started)
        for index, outcome in run_tasks(self.workers.pool, self.workers.score, tasks, should_stop=run.should_stop):
            adapter_pairs = started[index]
            run.message = adapter_pairs[0].adapter.ref
            if isinstance(outcome, (*RECORDED_ERRORS, TaskLost)):
                run.failed[run.message] = outcome.message
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                for pair, scores in zip(adapter_pairs, outcome, strict=True):
                    run.store(pair, scores, base_scores[pair.sample])
            run.done += len(adapter_pairs)

    def _adapter_tasks(
        self, by_adapter: Iterable[list[Pair]], texts: Mapping[str, tuple[Passage, ...]], started: list[list[Pair]]
    ) -> Iterator[Task]:
        """A task for each adapter, whose pairs are appended to `started`; its weights are read when it is started."""
        for pairs in by_adapter:
            adapter = pairs[0].adapter
            try:
                weights = self.run.registry.blobs.read(adapter.weights_blob)
            except RECORDED_ERRORS as error:
                self.run.failed[adapter.ref] = error.message
                self.run.done += len(pairs)
                continue
            started.append(pairs)
            samples = tuple(pair.sample for pair in pairs)
            yield Task(self._to_score(samples, (adapter.digest, adapter.config, weights)), texts)

    def _read_texts(self, sampled: Mapping[str, AdapterRow]) -> dict[str, tuple[Passage, ...]]:
        """The texts of samples by digest; a damaged one is recorded and skipped."""
        texts = {}
        for digest, row in sampled.items():
            try:
                texts[digest] = tuple(self.run.texts_of(row))
            except RECORDED_ERRORS as error:
                self.run.failed[row.ref] = error.message
        return texts

    def _score_base(
        self, texts: Mapping[str, tuple[Passage, ...]], sampled: Mapping[str, AdapterRow]
    ) -> dict[str, list[PassageScore]]:
        """Scores of the base model by sample digest; a sample with too few tokens is recorded and skipped."""
        digests, base_scores = list(texts), {}
        run, tasks = self.run, [Task(self._to_score((digest,)), texts) for digest in digests]
        for index, outcome in run_tasks(self.workers.pool, self.workers.score, tasks, should_stop=run.should_stop):
            row = sampled[digests[index]]
            run.message = f"the base model on {row.domain}"
            if isinstance(outcome, BaseException):
                raise outcome
            (scores,) = outcome
            try:
                _check_scored(scores)
                base_scores[digests[index]] = scores
            except InvalidParameter as error:
                run.failed[row.ref] = error.message
        return base_scores

    def _to_score(self, samples: tuple[str, ...], adapter: tuple[str, AdapterConfig, bytes] | None = None) -> ToScore:
        base = self.run.base
        return ToScore(base.entry, base.shape.fingerprint, self.workers.threads, samples, adapter)


def _check_scored(scores: Sequence[PassageScore]) -> None:
    """Raise InvalidParameter where too few passages of a sample have a token to score."""
    scored = sum(score.tokens > 0 for score in scores)
    if scored < MIN_PASSAGES:
        raise InvalidParameter(
            f"Only {scored} of the first {len(scores)} passages of the sample can be scored, and an "
            f"evaluation needs {MIN_PASSAGES}: push a sample with longer texts.",
            param="passages",
        )


def _sample(row: AdapterRow) -> str:
    """The digest of an adapter's sample."""
    assert row.sample is not None
    return row.sample.digest
