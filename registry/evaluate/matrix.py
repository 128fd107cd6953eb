"""The verb that evaluates every adapter of a pool on the samples of all of them: each against the base model.

Called by the job. What is known already is not computed again, so that a job that was ended goes on, and a pool that
has grown costs what is new. An adapter mostly was trained on text like its own sample: that pair is optimistic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from registry.catalogue.evaluations import NewEvaluation
from registry.catalogue.rows import AdapterRow
from registry.context import BaseModel, Caller, Registry
from registry.errors import DamagedBlob, Incompatible, Internal, InvalidParameter, InvalidWeights, NotFound, TooLarge
from registry.files import decode_lines
from registry.progress import Progress
from registry.select.pools import check_not_empty, current_members
from registry.spec import AdapterConfig, BaseEntry, PassageScore, PoolSpec
from registry.stored_files import loadable
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, TaskLost, Watch
from registry.uncertainty import paired_difference

MOST_ADAPTERS = 100
"""Of a pool that is evaluated: ten thousand pairs."""
FEWEST = 2
"""Passages of a sample that adapters are evaluated on: a single one does not tell how sure a difference is."""
BROKEN = (DamagedBlob, Incompatible, Internal, InvalidParameter, InvalidWeights, NotFound)
"""What is wrong with one adapter or sample, and keeps no other from being evaluated."""


@dataclass(frozen=True)
class CrossEvaluated:
    """What became of the pairs of a pool; `failed` has why an adapter could not be run, or its sample not be read."""

    pairs: int
    computed: int
    known: int
    failed: dict[str, str]


@dataclass(frozen=True)
class ToScore:
    """Samples, by their digests, that are scored by an adapter, or by the base model alone.

    Tasks share the texts, by these digests.
    """

    entry: BaseEntry
    fingerprint: str
    threads: int
    samples: tuple[str, ...]
    adapter: tuple[str, AdapterConfig, bytes] | None = None
    """Its digest, its configuration, and its weights as they are stored."""


Scores = list[list[PassageScore]]
"""Of each sample, its passages' scores."""


@dataclass(frozen=True)
class Elsewhere:
    """Processes or machines on which adapters are evaluated, and the function that scores samples there."""

    pool: Pool
    score: Callable[[ToScore, Watch], Scores]
    threads: int


@dataclass(frozen=True)
class Pairs:
    """A pool's members, those that stand for a sample with text, and the pairs that are still to be computed."""

    members: tuple[AdapterRow, ...]
    sampled: tuple[AdapterRow, ...]
    missing: tuple[tuple[AdapterRow, AdapterRow], ...]
    """(adapter, whose sample), sample by sample."""

    @property
    def count(self) -> int:
        """All of them."""
        return len(self.members) * len(self.sampled)


def pairs_of(registry: Registry, pool: PoolSpec, *, passages: int) -> Pairs:
    """What evaluating a pool is made of. Raises InvalidParameter or Unavailable for none, TooLarge for too many.

    A pair is known where it was evaluated on as many passages, or on all that the sample has.
    """
    with registry.database.read() as catalogue:
        found = current_members(catalogue, pool, None)
        check_not_empty(catalogue, pool, found)
        if len(found) > MOST_ADAPTERS:
            raise TooLarge(
                f"The pool has {len(found)} adapters, and at most {MOST_ADAPTERS} are evaluated on each other's "
                "samples: narrow it down by namespace, method or tag.",
                param="pool",
            )
        members = [row for one in found if (row := catalogue.adapters.get_or_none(one.id)) is not None]
        texts = [row for row in members if row.sample is not None and row.sample.has_text and _kept(row) >= FEWEST]
        sampled = list({_sample(row): row for row in texts}.values())
        known = catalogue.evaluations.passages(
            {row.digest for row in members}, {_sample(row) for row in sampled}
        )  # fmt: skip
    missing = tuple(
        (one, of)
        for of in sampled
        for one in members
        if known.get((one.digest, _sample(of)), 0) < min(passages, _kept(of))
    )
    return Pairs(tuple(members), tuple(sampled), missing)


def cross_evaluate(
    registry: Registry, caller: Caller, base: BaseModel, pool: PoolSpec, *, passages: int, progress: Progress,
    elsewhere: Elsewhere | None = None,
) -> CrossEvaluated:  # fmt: skip
    """Evaluate what is missing of a pool, on the first passages of each sample; each pair is stored when it is known.

    `progress` may raise to end it. With `elsewhere` the base model is asked for its entry and shape alone, and an
    adapter's pairs are known together. Raises as `pairs_of`, what the base model's scoring does, and what the place
    does.
    """
    pairs = pairs_of(registry, pool, passages=passages)
    work = _Work(registry, caller, base, passages, progress, total=len(pairs.missing))
    if elsewhere is None:
        for one, of in pairs.missing:
            work.evaluate(one, of)
    else:
        work.evaluate_elsewhere(pairs.missing, elsewhere)
    return CrossEvaluated(pairs.count, work.computed, pairs.count - len(pairs.missing), work.failed)


class _Work:
    """The pairs that are computed, sample by sample: its text and what the base gets on it are read once."""

    def __init__(
        self, registry: Registry, caller: Caller, base: BaseModel, passages: int, progress: Progress, *, total: int
    ) -> None:
        self._registry, self._caller, self._base, self._passages = registry, caller, base, passages
        self._progress, self._total, self._begun = progress, total, 0
        self._of: str | None = None
        self._unread: set[str] = set()
        self._texts: Sequence[str] = ()
        self._alone: Sequence[PassageScore] = ()
        self.computed = 0
        self.failed: dict[str, str] = {}

    def evaluate(self, one: AdapterRow, of: AdapterRow) -> None:
        """One pair; an adapter that cannot be run is noted and not tried again, and so is a sample that is damaged."""
        self._begun += 1
        said = f"{one.ref} on {of.domain}"
        self._progress(self._begun - 1, self._total, said)
        if one.ref in self.failed or of.ref in self._unread:
            return

        def alive(*_: object) -> None:
            self._progress(self._begun - 1, self._total, said)

        try:
            self._read(of, alive)
        except BROKEN as error:
            self.failed[of.ref] = error.message
            self._unread.add(of.ref)
            return
        try:
            scores = self._base.score(self._texts, loadable(one, self._registry.blobs), progress=alive)
            self._store(one, of, scores)
        except BROKEN as error:
            self.failed[one.ref] = error.message

    def evaluate_elsewhere(self, pairs: Sequence[tuple[AdapterRow, AdapterRow]], at: Elsewhere) -> None:
        """Pairs in a pool: first the base alone, a task a sample, then a task for each adapter with its samples."""
        sampled = {_sample(of): of for _, of in pairs}
        texts = self._all_texts(sampled)
        alone = self._alone_elsewhere(texts, sampled, at)
        samples: dict[str, list[AdapterRow]] = {}
        for one, of in pairs:
            if _sample(of) in alone:
                samples.setdefault(one.digest, []).append(of)
        rows = list({one.digest: one for one, _ in pairs if one.digest in samples}.values())
        self._begun = len(pairs) - sum(map(len, samples.values()))
        started: list[AdapterRow] = []

        def tasks() -> Iterator[Task]:
            """An adapter's weights are read when it is about to be evaluated."""
            for one in rows:
                try:
                    adapter = (one.digest, one.config, self._registry.blobs.read(one.weights_blob))
                except BROKEN as error:
                    self.failed[one.ref] = error.message
                    self._begun += len(samples[one.digest])
                    continue
                started.append(one)
                yield Task(self._to_score(at, tuple(map(_sample, samples[one.digest])), adapter), texts)

        for index, outcome in self._run(at, tasks(), lambda index: started[index].ref):
            one = started[index]
            if isinstance(outcome, (*BROKEN, TaskLost)):
                self.failed[one.ref] = outcome.message
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                for of, scores in zip(samples[one.digest], outcome, strict=True):
                    self._alone = alone[_sample(of)]
                    self._store(one, of, scores)
            self._begun += len(samples[one.digest])

    def _all_texts(self, sampled: Mapping[str, AdapterRow]) -> dict[str, tuple[str, ...]]:
        """The texts of samples by their digests; one that is damaged is noted and left out."""
        found = {}
        for digest, of in sampled.items():
            try:
                found[digest] = tuple(self._texts_of(of))
            except BROKEN as error:
                self.failed[of.ref] = error.message
        return found

    def _alone_elsewhere(
        self, texts: Mapping[str, tuple[str, ...]], sampled: Mapping[str, AdapterRow], at: Elsewhere
    ) -> dict[str, list[PassageScore]]:
        """What the base gets on each sample; one of which too little can be scored is noted and left out."""
        digests, found = list(texts), {}
        tasks = [Task(self._to_score(at, (digest,)), texts) for digest in digests]
        for index, outcome in self._run(at, tasks, lambda index: f"the base model on {sampled[digests[index]].domain}"):
            if isinstance(outcome, BaseException):
                raise outcome
            (scores,) = outcome
            try:
                _check_scored(scores)
            except InvalidParameter as error:
                self.failed[sampled[digests[index]].ref] = error.message
            else:
                found[digests[index]] = scores
        return found

    def _to_score(
        self, at: Elsewhere, samples: tuple[str, ...], adapter: tuple[str, AdapterConfig, bytes] | None = None
    ) -> ToScore:
        return ToScore(self._base.entry, self._base.shape.fingerprint, at.threads, samples, adapter)

    def _run(
        self, at: Elsewhere, tasks: Iterable[Task], name: Callable[[int], str]
    ) -> Iterator[tuple[int, Scores | BaseException]]:
        """Tasks as they end; `progress` is called meanwhile, and may raise to end them."""
        message = "waiting for the first task"

        def should_stop() -> bool:
            self._progress(self._begun, self._total, message)
            return False

        for index, outcome in run_tasks(at.pool, at.score, tasks, should_stop=should_stop):
            message = name(index)
            yield index, outcome

    def _read(self, of: AdapterRow, alive: Progress) -> None:
        """The text of a sample, and the base alone on it."""
        if self._of != _sample(of):
            texts = self._texts_of(of)
            alone = self._base.score(texts, None, progress=alive)
            _check_scored(alone)
            self._alone = alone
            self._of, self._texts = _sample(of), texts

    def _texts_of(self, of: AdapterRow) -> list[str]:
        """The first passages of a sample."""
        return decode_lines(self._registry.blobs.read(_sample(of)))[: self._passages]

    def _store(self, one: AdapterRow, of: AdapterRow, scores: Sequence[PassageScore]) -> None:
        nll, alone = (np.array([score.nll for score in some]) for some in (scores, self._alone))
        tokens = np.array([score.tokens for score in scores])
        row = NewEvaluation(
            adapter_digest=one.digest, sample_digest=_sample(of), passages=len(scores), tokens=int(tokens.sum()),
            nll=float(nll.sum()), base_nll=float(alone.sum()), created_by=self._caller.key_id,
            standard_error=paired_difference(nll, alone, tokens).standard_error,
        )  # fmt: skip
        with self._registry.database.write() as catalogue:
            there = (catalogue.adapters.get_or_none(one.id), catalogue.adapters.get_or_none(of.id))
            if None not in there:  # nothing is kept of what was purged meanwhile
                catalogue.evaluations.put(row)
                self.computed += 1


def _check_scored(alone: Sequence[PassageScore]) -> None:
    """Raises InvalidParameter where too few passages of a sample have a token to score."""
    scored = sum(score.tokens > 0 for score in alone)
    if scored < FEWEST:
        raise InvalidParameter(
            f"Of the first {len(alone)} passages of the sample, {scored} can be scored, and an evaluation takes "
            f"{FEWEST}: push a sample with longer texts.",
            param="passages",
        )


def _sample(row: AdapterRow) -> str:
    assert row.sample is not None
    return row.sample.digest


def _kept(row: AdapterRow) -> int:
    assert row.sample is not None
    return row.sample.kept
