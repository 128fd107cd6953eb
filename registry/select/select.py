"""The select verb: a fitted selector chooses adapters of a pool for a sample, and says why these.

Called by the select route and by `cook`. A pool without a fitted selector is fitted first, through a callable
that runs the fit job; a pool that has one answers with it, whatever has come or gone since. One that is idle, that is
which nobody asked for in so long that pushes did not have it fitted again, is fitted first too if its pool is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
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
    as_members,
    check_not_empty,
    current_members,
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
from registry.selectors.state import header_size, load_state, mapped, place_of
from registry.spec import PoolRequest, PoolSpec, PosteriorSpec, SampleReport, Selection, SelectOptions, SelectorSpec

Fit = Callable[[PoolSpec, SelectorSpec, str | None], SelectorRow]
"""(pool, spec, digest of the encoder) -> the fitted selector: has a pool fitted."""
Rank = Callable[[np.ndarray], Ranking]
"""(vectors of a sample) -> how a fitted selector ranks its members for it, without those that are gone."""
MAJORITY = 0.5
"""The posterior from which one adapter is what a sample is most like."""
ASKED_TO = timedelta(hours=1)
"""So exactly it is known when a selector was last asked for: within it nothing is written."""


@dataclass(frozen=True)
class Chosen:
    """A selection, the ranking it was taken from, the fitted selector, and the sample's vectors."""

    selection: Selection
    ranking: Ranking
    selector: SelectorRow
    not_yet_included: tuple[str, ...]
    vectors: Vectors | None
    rank: Rank

    def by(self, passages: Sequence[int]) -> Chosen:
        """What the same selector chooses for these passages alone, by their numbers."""
        ranking = self.rank(_array(self.vectors, passages))
        return replace(self, selection=ranking.selection(), ranking=ranking)

    def report_of(self, sample: CheckedSample) -> SampleReport:
        """The sample's report, with what the encoder cut at its length limit."""
        name = self.selector.spec.encoder_name
        if name is None or self.vectors is None or not sample.texts:
            return sample.report
        return sample.report.model_copy(update={"truncated": {name: self.vectors.truncated}})


def select(
    registry: Registry,
    caller: Caller,
    sample: CheckedSample,
    *,
    pool: PoolRequest,
    spec: SelectorSpec,
    options: SelectOptions,
    fit: Fit,
    passages: Sequence[int] | None = None,
    listed: int | None = LISTED,
    scored: bool = True,
    progress: Progress | None = None,
) -> Chosen:
    """Choose adapters of a pool for a sample, or for some of its `passages` by their numbers.

    Of those left out the best `listed` are named, with None all. Without `scored` the vectors come without the base
    model's losses. Raises InvalidSample where its vectors are of another encoder, and what `progress` raises.
    """
    base, members = pool_of(registry, caller, pool)
    encoder = encoder_for(spec, base.encoders())
    digest = None if encoder is None else encoder.digest
    row = answering(registry, members, spec, digest)
    if row is None:
        row = fit(members, spec, digest)
        asked_for(registry, row, base.entry.id, created_by=caller.key_id)
    selector = loaded(registry, row)
    vectors = None if encoder is None else sample_vectors(sample, encoder, scored=scored, progress=progress)
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
        present = members_of(catalogue, row.pool, row.encoder_digest)
    known = {member.adapter_id for member in row.members}
    superseded = [
        (Member(one.ref, one.digest, one.domain), why) for one, why in present.superseded if one.id not in known
    ]  # one that is known still serves its domain, until the refit

    def rank(array: np.ndarray) -> Ranking:
        ranking = selector.rank(array, options=options, exclude=gone)
        return replace(ranking, excluded=(*ranking.excluded, *superseded))

    ranking = rank(_array(vectors, passages))
    missing = missing_members(present, row)
    return Chosen(ranking.selection(listed=listed), ranking, row, missing, vectors, rank)


def likeliest(registry: Registry, caller: Caller, sample: CheckedSample, *, pool: PoolRequest) -> Candidate | None:
    """The one adapter of a pool that a sample is most like, by its fitted posterior selector; None where none is.

    None is where no domain has half of the posterior, and where the sample is as far from all of them as only the
    farthest of their own samples are. Raises Unavailable where nothing was fitted.
    """
    spec = PosteriorSpec()
    base, members = pool_of(registry, caller, pool)
    encoder = encoder_for(spec, base.encoders())
    row = answering(registry, members, spec, None if encoder is None else encoder.digest)
    if row is None or encoder is None:
        raise Unavailable(
            "No posterior selector was fitted for the adapters that this key sees: ask /v1/select once with the "
            "scope 'write', or cook a soup."
        )
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
    vectors = sample_vectors(sample, encoder, scored=False).array
    ranking = loaded(registry, row).rank(vectors, options=SelectOptions(), exclude=gone)
    strange = ranking.evidence.novelty
    best = ranking.ranked[0] if len(ranking.ranked) else None
    return best if best is not None and best.score >= MAJORITY and (strange is None or strange < NOVEL) else None


def _array(vectors: Vectors | None, passages: Sequence[int] | None) -> np.ndarray:
    """The vectors of these passages, or of all; none for a selector that looks at no text."""
    if vectors is None:
        return np.empty((0, 0), np.float32)
    return vectors.array if passages is None else vectors.of(passages)


def pool_of(registry: Registry, caller: Caller, request: PoolRequest) -> tuple[BaseModel, PoolSpec]:
    """The base model and the pool that a caller means; raises InvalidParameter or Forbidden."""
    base = registry.bases[pool_base(request, registry.bases)]
    return base, pool_spec(request, base.shape, caller.namespaces)


def encoder_for(spec: SelectorSpec, encoders: Mapping[str, Encoder]) -> Encoder | None:
    """The encoder a selector needs, of those there are; None where it looks at no text. Raises Unavailable."""
    name = spec.encoder_name
    if name is None:
        return None
    for encoder in encoders.values():
        if encoder.name == name:
            return encoder
    raise Unavailable(f"Encoder {name!r} is not available on this server.")


def check_selectable(database: Database, pool: PoolSpec, encoder_digest: str | None) -> None:
    """Raises as `registry.select.pools.check_not_empty` does where a fit of this pool would have no member."""
    with database.read() as catalogue:
        check_not_empty(catalogue, pool, current_members(catalogue, pool, encoder_digest))


def latest(pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None, database: Database) -> SelectorRow | None:
    """The newest fitted selector of a pool and spec, if it was fitted with this encoder."""
    with database.read() as catalogue:
        row = catalogue.selectors.latest(pool.digest, spec.digest)
    return row if row is not None and row.encoder_digest == encoder_digest else None


def answering(registry: Registry, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None) -> SelectorRow | None:
    """The selector that answers for a pool and spec, now asked for; None where a fit comes first.

    That is a pool never fitted, one that changed while its selector was idle, or one whose selector is damaged.
    """
    row = latest(pool, spec, encoder_digest, registry.database)
    if row is None or not registry.blobs.is_whole(row.state_blob):
        return None
    moment = datetime.now(UTC)
    with registry.database.read() as catalogue:
        asked_at = catalogue.selectors.asked_at([row.id]).get(row.id, moment)
        idle = registry.refits.is_idle(asked_at, moment)
        if idle and _is_another(catalogue, row):
            return None
    if not idle and moment - asked_at < ASKED_TO:
        return row
    try:
        with registry.database.write() as catalogue:  # no push comes between the look at the pool and the note
            if idle and _is_another(catalogue, row):
                return None
            catalogue.selectors.record_request(row.pool_id, row.spec_digest, moment)
    except (Busy, Unavailable):  # a note can wait for the next request
        if idle:
            raise
    return row


def _is_another(catalogue: Catalogue, row: SelectorRow) -> bool:
    """Whether the pool of a selector has other adapters than it was fitted over; one that is empty cannot be fitted."""
    present = as_members(current_members(catalogue, row.pool, row.encoder_digest))
    return bool(present) and present != row.members


def asked_for(registry: Registry, row: SelectorRow, base_model: str, *, created_by: str) -> None:
    """Remember that somebody asked for the pool and spec of a selector that was just fitted.

    What was pushed while it was fitted had no refit, since it was idle until now: it has one then.
    """
    with registry.database.write() as catalogue:
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, datetime.now(UTC))
        if _is_another(catalogue, row):
            namespace = next(iter(row.pool.namespaces or ("default",)))
            enqueue_fit(
                catalogue, base_model, row.pool, row.spec, namespace=namespace, created_by=created_by,
                delay=registry.refits.delay,
            )  # fmt: skip


def loaded(registry: Registry, row: SelectorRow) -> Selector[Any]:
    """A fitted selector, from memory or from its stored tensors and JSON; it is shared, and never changed.

    The arrays of a large one stay in the blob's file, mapped; that this is the file and whole is looked at each time.
    Raises DamagedBlob where it is not.
    """
    held = registry.selectors.held(row.state_blob)
    if held is not None:
        return held
    with registry.blobs.open(row.state_blob) as file:
        place = place_of(file)
        if place is not None:
            return registry.selectors.get(f"{place}:{row.state_blob}", partial(_mapped, row, file))
    return registry.selectors.get(row.state_blob, partial(_read, row, registry.blobs))


def _read(row: SelectorRow, blobs: BlobStore) -> tuple[Selector[Any], int]:
    """The selector of a state in memory, and its bytes."""
    data = blobs.read(row.state_blob)
    return SELECTORS[row.spec.kind].from_state(*load_state(data)), len(data)


def _mapped(row: SelectorRow, file: BinaryIO) -> tuple[Selector[Any], int]:
    """The selector of a state in a file, and its bytes that are not in the file: its JSON, and what it works out."""
    data = mapped(file)
    selector = SELECTORS[row.spec.kind].from_state(*load_state(data))
    return selector, header_size(data) + selector.kept_bytes


def sample_vectors(
    sample: CheckedSample, encoder: Encoder, *, scored: bool = True, progress: Progress | None = None
) -> Vectors:
    """The sample in this encoder's space: embedded now, or as the client sent it."""
    if sample.texts:
        return embed_texts(sample.texts, encoder, progress, scored=scored)
    for vectors in sample.vectors:
        if vectors.encoder == encoder.digest:
            return vectors
    raise InvalidSample(
        f"This selector needs vectors of encoder {encoder.name!r} ({encoder.digest}), and the sample has none.",
        param="sample",
    )
