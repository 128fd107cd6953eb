"""The select verb: a fitted selector chooses adapters of a pool for a sample, with reasons.

Called by the select route and by `cook`. A pool without a fitted selector is fitted first, through a callable that runs
the fit job; otherwise its selector answers, even if members were added or removed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from registry.catalogue.rows import SelectorRow
from registry.context import Caller, Registry
from registry.encoders.contract import Encoder
from registry.errors import InvalidSample, NotFound, Unavailable
from registry.progress import Progress
from registry.samples.sample import CheckedSample, Vectors, embed_texts
from registry.select.fitted import current_selector, current_state, load_selector, record_use
from registry.select.pools import RETRY_AFTER, gone_members, is_fit_active, members_of, missing_members
from registry.select.requested import RequestedSelector, requested_selector
from registry.selectors.contract import Selector
from registry.selectors.ranking import LISTED, Member, Ranking
from registry.spec import PoolRequest, PoolSpec, PosteriorSpec, SampleReport, Selection, SelectOptions, SelectorSpec

Fit = Callable[[PoolSpec, SelectorSpec, str | None], SelectorRow]
"""(pool, spec, digest of the encoder) -> the fitted selector; runs the fit job."""
HAS_LEARNT = "has learnt from this sample"
"""Why an adapter takes no part in choosing for the very sample that it was trained on, as by effort `tune`."""


@dataclass(frozen=True)
class _Ranker:
    """A selector. `excluded`: reasons by digest; `superseded`: members that were not fitted, with reasons."""

    selector: Selector[Any]
    options: SelectOptions
    excluded: Mapping[str, str]
    superseded: Sequence[tuple[Member, str]]

    def rank(self, vectors: Vectors | None, passages: Sequence[int] | None) -> Ranking:
        """The ranking for these passages of a sample, by default all; without vectors for no text."""
        if vectors is None:
            array = np.empty((0, 0), np.float32)
        else:
            array = vectors.array if passages is None else vectors.of(passages)
        ranking = self.selector.rank(array, options=self.options, exclude=self.excluded)
        return replace(ranking, excluded=(*ranking.excluded, *self.superseded))


@dataclass(frozen=True)
class Chosen:
    """A selection, the ranking it is chosen from, the fitted selector, and the sample's vectors."""

    selection: Selection
    ranking: Ranking
    selector: SelectorRow
    not_yet_included: tuple[str, ...]
    vectors: Vectors | None
    ranker: _Ranker

    def by(self, passages: Sequence[int]) -> Chosen:
        """The choice of the same selector for these passages of the sample alone, by index."""
        ranking = self.ranker.rank(self.vectors, passages)
        return replace(self, selection=ranking.selection(), ranking=ranking)

    def report_of(self, sample: CheckedSample) -> SampleReport:
        """The sample's report, with the number of units that the encoder truncated."""
        name = self.selector.spec.encoder_name
        if name is None or self.vectors is None or not sample.texts:
            return sample.report
        return sample.report.model_copy(update={"truncated": {name: self.vectors.truncated}})


@dataclass(frozen=True)
class SelectQuery:
    """The pool and the selector to choose with, for all of a sample or some of its `passages`, by index.

    At most `listed` adapters that are not chosen are named, and at most `listed` that the selector does not know; all
    with None. Without `scored` the vectors come without the base model's losses. Adapters that have learnt from the
    sample are ranked only with `include_learnt`.
    """

    pool: PoolRequest
    spec: SelectorSpec
    options: SelectOptions = field(default_factory=SelectOptions)
    passages: Sequence[int] | None = None
    listed: int | None = LISTED
    scored: bool = True
    include_learnt: bool = False


def select_from_pool(
    registry: Registry,
    caller: Caller,
    sample: CheckedSample,
    query: SelectQuery,
    *,
    fit: Fit,
    progress: Progress | None = None,
) -> Chosen:
    """Choose adapters of a pool for a sample; `fit` is called where the pool has no current selector.

    Raises InvalidSample where the sample's vectors are of another encoder, and what `fit` and `progress` raise.
    """
    requested = requested_selector(registry, caller, query.pool, query.spec)
    encoder = requested.encoder
    row = current_selector(registry, requested)
    if row is None:
        row = fit(requested.pool, query.spec, requested.encoder_digest)
        record_use(registry, row, requested.base.entry.id, created_by=caller.key_id)
    selector = load_selector(registry, row)
    vectors = None if encoder is None else sample_vectors(sample, encoder, scored=query.scored, progress=progress)
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
        learnt = [] if query.include_learnt else catalogue.adapters.learnt_from(sample.report.digest)
        members = members_of(catalogue, row.pool, row.encoder_digest)
        missing = missing_members([*members.rows, *catalogue.adapters.pending(row.pool)], row)
    fitted = {member.adapter_id for member in row.members}
    superseded = [
        (Member(adapter.ref, adapter.digest, adapter.domain), reason)
        for adapter, reason in members.superseded
        if adapter.id not in fitted  # one that was fitted serves its domain until the refit
    ]
    excluded = {adapter.digest: HAS_LEARNT for adapter in learnt} | gone
    ranker = _Ranker(selector, query.options, excluded, superseded)
    ranking = ranker.rank(vectors, query.passages)
    return Chosen(ranking.selection(listed=query.listed), ranking, row, missing[: query.listed], vectors, ranker)


class PromptSelection(NamedTuple):
    """Adapters by ref with their shares of the posterior on a prompt, best first, and the prompt's novelty."""

    shares: dict[str, float]
    novelty: float | None


def select_for_prompt(
    registry: Registry, caller: Caller, sample: CheckedSample, *, pool: PoolRequest
) -> PromptSelection:
    """The adapters of a pool that a prompt is most like, by the fitted posterior selector.

    Raises Unavailable where none was fitted: a prompt does not wait for a fit.
    """
    requested = requested_selector(registry, caller, pool, PosteriorSpec())
    encoder = requested.encoder
    state = current_state(registry, requested)
    if state is None or encoder is None:
        raise _not_fitted(registry, requested)
    vectors = sample_vectors(sample, encoder, scored=False).array
    options = SelectOptions()
    selector = load_selector(registry, state)
    ranking = selector.rank(vectors, options=options)
    passing = {candidate.member.ref for candidate in ranking.ranked[: ranking.ranked.num_passing]}
    try:
        with registry.database.read() as catalogue:
            # all members are read only where that changes the choice
            if passing != catalogue.adapters.live_refs(passing):
                gone = gone_members(catalogue, catalogue.selectors.get(None, state.id))  # a refit may serve by now
                ranking = selector.rank(vectors, options=options, exclude=gone)
    except NotFound:  # it was replaced, and collected
        raise _not_fitted(registry, requested) from None
    best = [candidate for candidate in ranking.ranked[: options.most] if candidate.passes]
    return PromptSelection({candidate.member.ref: candidate.score for candidate in best}, ranking.evidence.novelty)


def _not_fitted(registry: Registry, requested: RequestedSelector) -> Unavailable:
    """The error for a prompt whose pool has no selector; a retry helps only while a fit of one is queued or running."""
    with registry.database.read() as catalogue:
        is_coming = is_fit_active(catalogue, requested.pool, requested.spec)
    return Unavailable(
        "No posterior selector is fitted for the adapters that this key sees: "
        + ("one is being fitted." if is_coming else "run `soup fit` once, with a key of scope 'write'."),
        retry_after=RETRY_AFTER if is_coming else None,
    )


def sample_vectors(
    sample: CheckedSample, encoder: Encoder, *, scored: bool = True, progress: Progress | None = None
) -> Vectors:
    """The sample's vectors by this encoder: its texts are embedded, or those the client sent are taken."""
    if sample.texts:
        return embed_texts(sample.texts, encoder, progress, scored=scored)
    for vectors in sample.vectors:
        if vectors.encoder == encoder.digest:
            return vectors
    raise InvalidSample(
        f"This selector needs vectors of encoder {encoder.name!r} ({encoder.digest}), and the sample has none.",
        param="sample",
    )
