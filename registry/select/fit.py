"""The fit verb: a pool and a spec become a fitted, immutable selector.

Called in the child process of the fit job, so that a long fit keeps nobody waiting. Fitting the same members again
gives the selector there is; where members came or went, a selector that can be updated is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from registry.blobs import BlobStore
from registry.catalogue.rows import MemberRow, SelectorRow, StoredVectors
from registry.context import Registry
from registry.errors import DamagedBlob, Internal
from registry.names import digest_of
from registry.progress import Progress
from registry.samples.embeddings_file import read_embeddings
from registry.select.damaged_vectors import mend
from registry.select.pools import as_members, check_not_empty, current_members
from registry.selectors import SELECTORS
from registry.selectors.contract import Domain, Embeddings, Selector
from registry.selectors.state import dump_state, load_state
from registry.spec import PoolSpec, SelectorSpec
from registry.stored_files import record_bytes

FEW = 500
"""Members that are asked for by their ids; of more, the vectors of the whole base are looked up."""


def fit(
    registry: Registry, pool: PoolSpec, spec: SelectorSpec, *, encoder_digest: str | None, progress: Progress
) -> SelectorRow:
    """Fit `spec` over the pool's present members; raises InvalidParameter where nothing can be selected from,
    and Unavailable where samples of members are still to be embedded.

    A member that is purged meanwhile is left out, and so is one whose vectors are damaged until they are made again
    from its sample, which is queued. Raises DamagedBlob where vectors are damaged and there is no text of the sample.
    """
    found_whole = False
    while True:
        start = _start(registry, pool, spec, encoder_digest)
        if start.known is not None and start.known.members == start.members:
            return start.known
        try:
            selector = _fitted(_Vectors(registry, pool.base_fingerprint, encoder_digest), start, spec, progress)
        except _Gone:
            continue
        except DamagedBlob:  # also what a purge has taken away meanwhile
            is_mended = encoder_digest is not None and mend(
                registry, start.members, base_fingerprint=pool.base_fingerprint, encoder_digest=encoder_digest
            )
            if found_whole and not is_mended:
                raise
            found_whole = not is_mended  # once: another fit may have had them made again since they were read
            continue
        data = dump_state(*selector.to_state())
        state_blob = registry.blobs.put_bytes(data)  # before the row that names it
        new = _new_row(
            pool, spec, encoder_digest=encoder_digest, members=start.members, state_blob=state_blob,
            report=selector.report_,
        )  # fmt: skip
        with registry.database.write() as catalogue:
            record_bytes(registry, catalogue, state_blob, data)
            if not catalogue.removals.gone([member.adapter_id for member in start.members]):
                return catalogue.selectors.add(new)
            # nothing that was computed from a purged sample is kept
            catalogue.removals.forget(catalogue.removals.unreferenced([state_blob]), datetime.now(UTC))


class _Gone(Exception):
    """A member has no vectors any more: it is purged, or another fit has them made again."""


@dataclass(frozen=True)
class _Start:
    """What a fit goes by: the members, and the selector that serves and is whole, if any."""

    members: tuple[MemberRow, ...]
    known: SelectorRow | None


def _start(registry: Registry, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None) -> _Start:
    with registry.database.read() as catalogue:
        rows = current_members(catalogue, pool, encoder_digest)
        check_not_empty(catalogue, pool, rows)
        known = catalogue.selectors.latest(pool.digest, spec.digest)
    usable = (
        known is not None
        and known.encoder_digest == encoder_digest
        and registry.blobs.is_whole(known.state_blob)  # else fitted anew
    )
    return _Start(as_members(rows), known if usable else None)


def _fitted(vectors: _Vectors, start: _Start, spec: SelectorSpec, progress: Progress) -> Selector[Any]:
    """The selector over the members of `start`: the one that serves after what changed, or a whole fit."""
    known = start.known
    if known is not None:
        changes = _changes(known, start.members)
        updated = _updated(known, changes, vectors.of(changes.members))
        if updated is not None:
            return updated
    domains = vectors.of(start.members)
    return SELECTORS[spec.kind](spec.resolved()).fit(list(map(domains.of, start.members)), progress=progress)


@dataclass(frozen=True)
class _Vectors:
    """The vectors of a base's adapters by an encoder, or none where no text is looked at."""

    registry: Registry
    base_fingerprint: str
    encoder_digest: str | None

    def of(self, members: Sequence[MemberRow]) -> _Domains:
        """Where those of these members are, as far as they are there; one query for many reads all of the base's."""
        if self.encoder_digest is None:
            return _Domains(self.registry.blobs, None)
        ids = [one.adapter_id for one in members] if len(members) <= FEW else None
        with self.registry.database.read() as catalogue:
            found = catalogue.adapters.vectors(self.base_fingerprint, self.encoder_digest, ids)
        return _Domains(self.registry.blobs, found)


@dataclass(frozen=True)
class _Domains:
    """Finds members' vectors; `embeddings` are theirs by adapter id, or None: the selector looks at no text."""

    blobs: BlobStore
    embeddings: Mapping[int, StoredVectors] | None

    def has(self, member: MemberRow) -> bool:
        """Whether a member's vectors are there and whole, or none are looked at."""
        stored = None if self.embeddings is None else self.embeddings.get(member.adapter_id)
        return self.embeddings is None or (stored is not None and self.blobs.is_whole(stored.blob))

    def of(self, member: MemberRow) -> Domain:
        """A member with its vectors, which are read when the selector comes to them.

        Raises _Gone where they went since the member was found, so that it is none now.
        """
        vectors: Embeddings = np.empty((0, 0), np.float32)
        if self.embeddings is not None:
            stored = self.embeddings.get(member.adapter_id)
            if stored is None:
                raise _Gone(member.ref)
            vectors = _Stored(self.blobs, stored)
        return Domain(ref=member.ref, digest=member.digest, domain=member.domain, vectors=vectors)


@dataclass(frozen=True)
class _Stored:
    """Vectors in the blob store, read and let go with each slice: a pool's do not fit into memory at once."""

    blobs: BlobStore
    stored: StoredVectors

    @property
    def shape(self) -> tuple[int, int]:
        """(units, dimensions), without a look at the blob."""
        return self.stored.units, self.stored.dimensions

    def __getitem__(self, rows: slice, /) -> npt.NDArray[np.float32]:
        found = read_embeddings(self.blobs.read(self.stored.blob), max_bytes=2**40)
        if found.shape != self.shape:
            raise Internal(f"Blob {self.stored.blob} holds vectors {found.shape}, and its row says {self.shape}.")
        return np.asarray(found[rows])


@dataclass(frozen=True)
class _Changes:
    """Members that came since a selector was fitted, and that went."""

    added: tuple[MemberRow, ...]
    removed: tuple[MemberRow, ...]

    @property
    def members(self) -> tuple[MemberRow, ...]:
        """All of them."""
        return self.added + self.removed


def _changes(known: SelectorRow, members: tuple[MemberRow, ...]) -> _Changes:
    before, now = set(known.members), set(members)
    return _Changes(
        added=tuple(member for member in members if member not in before),
        removed=tuple(member for member in known.members if member not in now),
    )


def _updated(known: SelectorRow, changes: _Changes, domains: _Domains) -> Selector[Any] | None:
    """The serving selector after these changes, None where a whole fit is due.

    It is where the vectors of what went are purged or damaged: without them it cannot be taken out of what was fitted.
    """
    if not all(map(domains.has, changes.removed)):
        return None
    before = SELECTORS[known.spec.kind].from_state(*load_state(domains.blobs.read(known.state_blob)))
    return before.updated(list(map(domains.of, changes.added)), list(map(domains.of, changes.removed)))


def _new_row(
    pool: PoolSpec,
    spec: SelectorSpec,
    *,
    encoder_digest: str | None,
    members: tuple[MemberRow, ...],
    state_blob: str,
    report: dict[str, Any],
) -> SelectorRow:
    """The row of a fitted selector; its id follows from what was fitted on what, so a repeat is the same row."""
    pool_id, spec_digest = pool.digest, spec.digest
    identity = digest_of([pool_id, spec_digest, encoder_digest, [vars(member) for member in members], state_blob])
    return SelectorRow(
        id="sel-" + identity.removeprefix("sha256:")[:16],
        pool_id=pool_id,
        pool=pool,
        spec=spec,
        spec_digest=spec_digest,
        encoder_digest=encoder_digest,
        state_blob=state_blob,
        members=members,
        report=report,
        fitted_at=datetime.now(UTC),
    )
