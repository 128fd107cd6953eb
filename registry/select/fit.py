"""The fit verb: fits a selector over a pool and stores it, immutable.

Called in the child process of the fit job. A fit of the same members returns the stored selector; where members were
added or removed, the stored selector is updated if its kind allows.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from registry.select.damaged_vectors import repair_vectors
from registry.select.pools import as_members, check_not_empty, members_of
from registry.selectors import SELECTORS
from registry.selectors.contract import Domain, Embeddings, Selector
from registry.selectors.state import dump_state, load_state
from registry.selectors.updating import UpdatableSelector
from registry.spec import PoolSpec, SelectorSpec
from registry.stored.files import deleted_unless_recorded, record_bytes

MAX_IDS = 500
"""Members up to which vectors are queried by adapter id; for more, all vectors of the base model are."""


def fit(
    registry: Registry, pool: PoolSpec, spec: SelectorSpec, *, encoder_digest: str | None, progress: Progress
) -> SelectorRow:
    """Fit `spec` over the pool's current members and store the selector.

    Members that are purged during the fit are dropped, as are those whose vectors are damaged; their samples are queued
    to be embedded again. If another selector serves the pool meanwhile, the fit begins again. Raises InvalidParameter
    for a pool without members, Unavailable where samples of members are still to be embedded, and DamagedBlob where
    vectors are damaged and the sample has no text.
    """
    pool_fit = _PoolFit(registry, pool, spec, encoder_digest, progress)
    has_retried = False
    while True:
        serving = pool_fit.serving_selector()  # read before the members: a later selector may have newer ones
        members, stored = pool_fit.current_members(), pool_fit.usable(serving)
        if stored is not None and stored.members == members:
            return stored
        try:
            selector = pool_fit.fit(members, stored)
        except _VectorsRemoved:
            continue
        except DamagedBlob:  # or removed by a purge
            if pool_fit.repair(members):
                has_retried = False
            elif has_retried:
                raise
            else:
                has_retried = True  # another fit may have repaired the vectors after they were read
            continue
        row = pool_fit.store(selector, members, replacing=None if serving is None else serving.id)
        if row is not None:
            return row


class _VectorsRemoved(Exception):
    """The vectors of a member were removed by a purge, or by another fit that has its sample embedded again."""


@dataclass(frozen=True)
class _StoredEmbeddings:
    """Vectors in the blob store, read at each slice: those of a pool do not fit into memory together."""

    blobs: BlobStore
    stored: StoredVectors

    @property
    def shape(self) -> tuple[int, int]:
        """(units, dimensions), without reading the blob."""
        return self.stored.units, self.stored.dimensions

    def __getitem__(self, rows: slice, /) -> npt.NDArray[np.float32]:
        array = read_embeddings(self.blobs.read(self.stored.blob), max_bytes=2**40)
        if array.shape != self.shape:
            raise Internal(f"Blob {self.stored.blob} holds vectors {array.shape}, and its row says {self.shape}.")
        return np.asarray(array[rows])


@dataclass(frozen=True)
class _PoolFit:
    """One fit; `encoder_digest` is None for a selector that uses no vectors."""

    registry: Registry
    pool: PoolSpec
    spec: SelectorSpec
    encoder_digest: str | None
    progress: Progress

    def current_members(self) -> tuple[MemberRow, ...]:
        """The members of the pool now; raises InvalidParameter or Unavailable where it has none."""
        with self.registry.database.read() as catalogue:
            rows = members_of(catalogue, self.pool, self.encoder_digest).rows
            check_not_empty(catalogue, self.pool, rows)
        return as_members(rows)

    def serving_selector(self) -> SelectorRow | None:
        """The selector that serves the pool and spec now, None if there is none."""
        with self.registry.database.read() as catalogue:
            return catalogue.selectors.latest(self.pool.digest, self.spec.digest)

    def usable(self, row: SelectorRow | None) -> SelectorRow | None:
        """A stored selector; None where it is damaged or of another encoder."""
        if row is None or row.encoder_digest != self.encoder_digest:
            return None
        return row if self.registry.blobs.is_whole(row.state_blob) else None

    def fit(self, members: Sequence[MemberRow], stored: SelectorRow | None) -> Selector[Any]:
        """The stored selector updated to these members, else a whole fit; raises _VectorsRemoved or DamagedBlob."""
        updated = None if stored is None else self._update(stored, members)
        if updated is not None:
            return updated
        return SELECTORS[self.spec.kind](self.spec.resolved()).fit(self._domains(members), progress=self.progress)

    def _update(self, stored: SelectorRow, members: Sequence[MemberRow]) -> Selector[Any] | None:
        """The stored selector updated to these members; None where a whole fit is needed.

        It is needed where the vectors of a removed member are purged or damaged, as they cannot be subtracted.
        """
        kind = SELECTORS[stored.spec.kind]
        if not issubclass(kind, UpdatableSelector):
            return None
        old, new = set(stored.members), set(members)
        removed = [member for member in stored.members if member not in new]
        vectors = self._stored_vectors(removed)
        blobs = [vectors[member.adapter_id].blob for member in removed if member.adapter_id in vectors]
        if len(blobs) < len(removed) or not all(map(self.registry.blobs.is_whole, blobs)):
            return None
        selector = kind.from_state(*load_state(self.registry.blobs.read(stored.state_blob)))
        added = [member for member in members if member not in old]
        return selector.updated(self._domains(added), self._domains(removed))

    def _domains(self, members: Sequence[MemberRow]) -> list[Domain]:
        """The members with their vectors, which are read when sliced; raises _VectorsRemoved where one has none."""
        stored = self._stored_vectors(members)
        domains = []
        for member in members:
            vectors: Embeddings = np.empty((0, 0), np.float32)
            if self.encoder_digest is not None:
                if member.adapter_id not in stored:
                    raise _VectorsRemoved(member.ref)
                vectors = _StoredEmbeddings(self.registry.blobs, stored[member.adapter_id])
            domains.append(Domain(ref=member.ref, digest=member.digest, domain=member.domain, vectors=vectors))
        return domains

    def _stored_vectors(self, members: Sequence[MemberRow]) -> dict[int, StoredVectors]:
        """The stored vectors of at least these members, by adapter id."""
        if self.encoder_digest is None:
            return {}
        ids = [member.adapter_id for member in members] if len(members) <= MAX_IDS else None
        with self.registry.database.read() as catalogue:
            return catalogue.adapters.vectors(self.pool.base_fingerprint, self.encoder_digest, ids)

    def repair(self, members: Sequence[MemberRow]) -> bool:
        """Queue the embedding of members whose vectors are damaged; returns False where none are."""
        return self.encoder_digest is not None and repair_vectors(
            self.registry, members, base_fingerprint=self.pool.base_fingerprint, encoder_digest=self.encoder_digest
        )

    def store(
        self, selector: Selector[Any], members: tuple[MemberRow, ...], *, replacing: str | None
    ) -> SelectorRow | None:
        """Store a fitted selector; returns None where a member was purged, or another selector serves meanwhile.

        `replacing` is the id of the selector that served before the fit. The new id is derived from the members and the
        state, so that the same fit gives the same row.
        """
        data = dump_state(*selector.to_state())
        state_blob = self.registry.blobs.put_bytes(data)  # before the row that names it
        pool_id, spec_digest = self.pool.digest, self.spec.digest
        identity = [pool_id, spec_digest, self.encoder_digest, [vars(member) for member in members], state_blob]
        row = SelectorRow(
            id="sel-" + digest_of(identity).removeprefix("sha256:")[:16],
            pool_id=pool_id,
            pool=self.pool,
            spec=self.spec,
            spec_digest=spec_digest,
            encoder_digest=self.encoder_digest,
            state_blob=state_blob,
            members=members,
            report=selector.report_,
            fitted_at=datetime.now(UTC),
        )
        with deleted_unless_recorded(self.registry, [state_blob]), self.registry.database.write() as catalogue:
            record_bytes(self.registry, catalogue, state_blob, data)
            purged_ids = catalogue.removals.missing_ids([member.adapter_id for member in members])
            if not purged_ids and catalogue.selectors.latest_id(pool_id, spec_digest) == replacing:
                return catalogue.selectors.add(row)
            # not stored: in particular, nothing that was computed from a purged sample may stay
            catalogue.removals.forget(catalogue.removals.unreferenced([state_blob]), datetime.now(UTC))
        return None
