"""The fit verb: a pool and a spec become a fitted, immutable selector.

Called in the child process of the fit job, so that a long fit keeps nobody waiting. Fitting the same members again
gives the selector there is.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, MemberRow, SelectorRow
from registry.embeddings_file import read_embeddings
from registry.errors import Internal, InvalidParameter
from registry.names import digest_of
from registry.pools import as_members, current_members, embedding_of
from registry.progress import Progress
from registry.registry import Registry
from registry.selectors import SELECTORS
from registry.selectors.contract import Domain
from registry.selectors.state import dump_state
from registry.spec import PoolSpec, SelectorSpec


def fit(
    registry: Registry, pool: PoolSpec, spec: SelectorSpec, *, encoder_digest: str | None, progress: Progress
) -> SelectorRow:
    """Fit `spec` over the pool's present members; raises InvalidParameter where nothing can be selected from."""
    with registry.database.read() as catalogue:
        rows = current_members(catalogue, pool, encoder_digest)
        _check_not_empty(catalogue, pool, rows)
        known = catalogue.selectors.latest(pool.digest, spec.digest)
        vectors = {row.id: _embedding_blob(catalogue, row, encoder_digest) for row in rows}
    members = as_members(rows)
    if known is not None and known.members == members and known.encoder_digest == encoder_digest:
        return known
    domains = [_domain(row, vectors[row.id], registry.blobs) for row in rows]
    selector = SELECTORS[spec.kind](spec.resolved()).fit(domains, progress=progress)
    data = dump_state(*selector.to_state())
    state_blob = registry.blobs.put_bytes(data)  # before the row that names it
    new = _new_row(
        pool, spec, encoder_digest=encoder_digest, members=members, state_blob=state_blob, report=selector.report_
    )
    with registry.database.write() as catalogue:
        catalogue.blobs.seen(state_blob, len(data))
        return catalogue.selectors.add(new)


def _check_not_empty(catalogue: Catalogue, pool: PoolSpec, rows: list[AdapterRow]) -> None:
    if rows:
        return
    waiting = sum(row.config.is_language_model for row in catalogue.adapters.waiting(pool))
    raise InvalidParameter(
        "No adapter of this pool can be selected: "
        + (f"{waiting} wait for their sample to be embedded." if waiting else "push adapters with a sample first."),
        param="pool",
    )


def _embedding_blob(catalogue: Catalogue, row: AdapterRow, encoder_digest: str | None) -> str | None:
    if encoder_digest is None:
        return None
    embedding = embedding_of(catalogue, row, encoder_digest)
    if embedding is None:
        raise Internal(f"{row.ref} is a member without an embedding")
    return embedding.blob_digest


def _domain(row: AdapterRow, blob: str | None, blobs: BlobStore) -> Domain:
    empty = np.empty((0, 0), np.float32)  # a selector that looks at no text
    vectors = empty if blob is None else read_embeddings(blobs.read(blob), max_bytes=2**40)
    return Domain(ref=row.ref, digest=row.digest, domain=row.domain, vectors=vectors)


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
    identity = digest_of([pool_id, spec_digest, encoder_digest, [asdict(m) for m in members], state_blob])
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
