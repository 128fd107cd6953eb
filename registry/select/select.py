"""The select verb: a fitted selector chooses adapters of a pool for a sample, with reasons.

Called by the select route and by `cook`. A pool without a fitted selector is fitted first, through a callable that runs
the fit job; otherwise its selector answers, even if members were added or removed since. Pushes do not refit a
selector that is long unused (idle): if its pool has changed, it is refitted before it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, BinaryIO

import numpy as np

from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import SelectorRow
from registry.context import BaseModel, Caller, Registry
from registry.encoders.contract import Encoder
from registry.errors import Busy, InvalidSample, Unavailable
from registry.progress import Progress
from registry.samples.sample import CheckedSample, Vectors, embed_texts
from registry.select.pools import (
    FitTarget,
    as_members,
    check_not_empty,
    enqueue_fit,
    gone_members,
    members_of,
    missing_members,
    pool_base,
    pool_spec,
)
from registry.selectors import SELECTORS
from registry.selectors.contract import Selector
from registry.selectors.novelty import NOVEL
from registry.selectors.ranking import LISTED, Candidate, Member, Ranking
from registry.selectors.state import header_size, load_state, map_file, mappable_file_key
from registry.spec import PoolRequest, PoolSpec, PosteriorSpec, SampleReport, Selection, SelectOptions, SelectorSpec

Fit = Callable[[PoolSpec, SelectorSpec, str | None], SelectorRow]
"""(pool, spec, digest of the encoder) -> the fitted selector; runs the fit job."""
MAJORITY = 0.5
"""The least posterior of the adapter that `likeliest` returns."""
USE_RESOLUTION = timedelta(hours=1)
"""The time of a selector's last use is only written where the stored one is older than this."""


@dataclass(frozen=True)
class RequestedSelector:
    """The pool and the spec of a selector that a request names, and the base model of both."""

    base: BaseModel
    pool: PoolSpec
    spec: SelectorSpec

    @cached_property
    def encoder(self) -> Encoder | None:
        """The encoder that the selector needs; raises as `encoder_for` does."""
        return encoder_for(self.spec, self.base.encoders())

    @property
    def encoder_digest(self) -> str | None:
        """The digest of the encoder, None for a selector that looks at no text; raises as `encoder_for` does."""
        return None if self.encoder is None else self.encoder.digest


@dataclass(frozen=True)
class _Ranker:
    """A selector, and the adapters to exclude: `gone` is left out, `superseded` if not in the fit."""

    selector: Selector[Any]
    options: SelectOptions
    gone: Mapping[str, str]
    superseded: Sequence[tuple[Member, str]]

    def rank(self, vectors: Vectors | None, passages: Sequence[int] | None) -> Ranking:
        """The ranking for these passages of a sample, by default all; without vectors for no text."""
        if vectors is None:
            array = np.empty((0, 0), np.float32)
        else:
            array = vectors.array if passages is None else vectors.of(passages)
        ranking = self.selector.rank(array, options=self.options, exclude=self.gone)
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

    The best `listed` adapters that are not chosen are named, all with None. Without `scored` the vectors come without
    the base model's losses.
    """

    pool: PoolRequest
    spec: SelectorSpec
    options: SelectOptions = field(default_factory=SelectOptions)
    passages: Sequence[int] | None = None
    listed: int | None = LISTED
    scored: bool = True


def select(
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
        members = members_of(catalogue, row.pool, row.encoder_digest)
    fitted = {member.adapter_id for member in row.members}
    superseded = [
        (Member(adapter.ref, adapter.digest, adapter.domain), reason)
        for adapter, reason in members.superseded
        if adapter.id not in fitted  # one that was fitted serves its domain until the refit
    ]
    ranker = _Ranker(selector, query.options, gone, superseded)
    ranking = ranker.rank(vectors, query.passages)
    missing = missing_members(members, row)
    return Chosen(ranking.selection(listed=query.listed), ranking, row, missing, vectors, ranker)


def likeliest(registry: Registry, caller: Caller, sample: CheckedSample, *, pool: PoolRequest) -> Candidate | None:
    """The adapter of a pool with most of the posterior on a sample, by the fitted posterior selector.

    None where no adapter has half of the posterior, or the sample is novel to the pool. Raises Unavailable where no
    posterior selector was fitted.
    """
    requested = requested_selector(registry, caller, pool, PosteriorSpec())
    encoder = requested.encoder
    row = current_selector(registry, requested)
    if row is None or encoder is None:
        raise Unavailable(
            "No posterior selector was fitted for the adapters that this key sees: ask /v1/select once with the "
            "scope 'write', or cook a soup."
        )
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
    vectors = sample_vectors(sample, encoder, scored=False).array
    ranking = load_selector(registry, row).rank(vectors, options=SelectOptions(), exclude=gone)
    novelty = ranking.evidence.novelty
    is_novel = novelty is not None and novelty >= NOVEL
    if is_novel or not ranking.ranked or ranking.ranked[0].score < MAJORITY:
        return None
    return ranking.ranked[0]


def pool_of(registry: Registry, caller: Caller, request: PoolRequest) -> tuple[BaseModel, PoolSpec]:
    """The base model and the pool of a request; raises InvalidParameter or Forbidden."""
    base = registry.bases[pool_base(request, registry.bases)]
    return base, pool_spec(request, base.shape, caller.namespaces)


def requested_selector(registry: Registry, caller: Caller, pool: PoolRequest, spec: SelectorSpec) -> RequestedSelector:
    """The selector of a request's pool; raises InvalidParameter or Forbidden."""
    return RequestedSelector(*pool_of(registry, caller, pool), spec)


def encoder_for(spec: SelectorSpec, encoders: Mapping[str, Encoder]) -> Encoder | None:
    """The encoder that a selector needs, None where it looks at no text; raises Unavailable where it is missing."""
    name = spec.encoder_name
    if name is None:
        return None
    for encoder in encoders.values():
        if encoder.name == name:
            return encoder
    raise Unavailable(f"Encoder {name!r} is not available on this server.")


def check_selectable(database: Database, requested: RequestedSelector) -> None:
    """Raise as `registry.select.pools.check_not_empty` does where the pool has no member."""
    pool, encoder_digest = requested.pool, requested.encoder_digest
    with database.read() as catalogue:
        check_not_empty(catalogue, pool, members_of(catalogue, pool, encoder_digest).rows)


def latest(database: Database, requested: RequestedSelector) -> SelectorRow | None:
    """The newest fitted selector of a pool and spec; None where there is none, or it has another encoder."""
    encoder_digest = requested.encoder_digest
    with database.read() as catalogue:
        row = catalogue.selectors.latest(requested.pool.digest, requested.spec.digest)
    return row if row is not None and row.encoder_digest == encoder_digest else None


def current_selector(registry: Registry, requested: RequestedSelector) -> SelectorRow | None:
    """The fitted selector of a pool and spec, whose use is recorded; None where a fit is needed first.

    One is needed where the pool was never fitted, changed while its selector was idle, or the selector is damaged.
    """
    row = latest(registry.database, requested)
    if row is None or not registry.blobs.is_whole(row.state_blob):
        return None
    now = datetime.now(UTC)
    with registry.database.read() as catalogue:
        used_at = catalogue.selectors.asked_at([row.id]).get(row.id, now)
        is_idle = registry.refits.is_idle(used_at, now)
        if is_idle and _has_changed(catalogue, row):
            return None
    if is_idle:
        return _wake(registry, row, now)
    if now - used_at >= USE_RESOLUTION:
        with suppress(Busy, Unavailable), registry.database.write() as catalogue:  # the next request can record it
            catalogue.selectors.record_request(row.pool_id, row.spec_digest, now)
    return row


def _wake(registry: Registry, row: SelectorRow, now: datetime) -> SelectorRow | None:
    """Record the use of an idle selector, so that pushes refit it again; None if its pool has changed meanwhile."""
    with registry.database.write() as catalogue:
        if _has_changed(catalogue, row):  # by a push since the caller looked
            return None
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, now)
    return row


def _has_changed(catalogue: Catalogue, row: SelectorRow) -> bool:
    """Return True if the pool of a selector has other members than it was fitted over, and is not empty."""
    members = as_members(members_of(catalogue, row.pool, row.encoder_digest).rows)
    return bool(members) and members != row.members


def record_use(registry: Registry, row: SelectorRow, base_model: str, *, created_by: str) -> None:
    """Record the use of a selector that was just fitted, and queue a refit if its pool has changed.

    Pushes during the fit queued none where the selector was idle.
    """
    with registry.database.write() as catalogue:
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, datetime.now(UTC))
        if _has_changed(catalogue, row):
            namespace = next(iter(row.pool.namespaces or ("default",)))
            target = FitTarget(base_model, row.pool, row.spec)
            enqueue_fit(catalogue, target, namespace=namespace, created_by=created_by, delay=registry.refits.delay)


def load_selector(registry: Registry, row: SelectorRow) -> Selector[Any]:
    """A fitted selector, from the cache or its stored state; it is shared and immutable.

    The arrays of a large one stay in the blob's file, mapped; the file is checked at each call. Raises DamagedBlob.
    """
    cached = registry.selectors.find(row.state_blob)
    if cached is not None:
        return cached
    with registry.blobs.open(row.state_blob) as file:
        file_key = mappable_file_key(file)
        if file_key is not None:
            return registry.selectors.get(f"{file_key}:{row.state_blob}", partial(_map_selector, row, file))
    return registry.selectors.get(row.state_blob, partial(_read_selector, row, registry.blobs))


def _read_selector(row: SelectorRow, blobs: BlobStore) -> tuple[Selector[Any], int]:
    """A selector with its arrays in memory, and its size in bytes."""
    data = blobs.read(row.state_blob)
    return SELECTORS[row.spec.kind].from_state(*load_state(data)), len(data)


def _map_selector(row: SelectorRow, file: BinaryIO) -> tuple[Selector[Any], int]:
    """A selector with its arrays mapped from a file, and the bytes that it needs in memory."""
    data = map_file(file)
    selector = SELECTORS[row.spec.kind].from_state(*load_state(data))
    return selector, header_size(data) + selector.cached_bytes


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
