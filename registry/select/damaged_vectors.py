"""Repairs damaged stored vectors of samples by embedding their texts again.

Called by `fit`, which reads the vectors. The sample of such an adapter becomes `pending`, as after a push: pools are
fitted without it, and again when it is embedded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from registry.catalogue.database import Catalogue
from registry.catalogue.rows import MemberRow, StoredVectors
from registry.context import Registry
from registry.errors import DamagedBlob
from registry.samples.sample import enqueue_embed

log = logging.getLogger("soup.fit")
ACTOR = "repair"
"""The actor recorded in the audit."""


def repair_vectors(
    registry: Registry, members: Sequence[MemberRow], *, base_fingerprint: str, encoder_digest: str
) -> bool:
    """Queue the embedding of members whose vectors are damaged; returns False where none are.

    Vectors that were purged or repaired by another fit in the meantime are skipped. Raises DamagedBlob where the text
    of a member is missing or damaged too, naming the first, after the others are queued.
    """
    with registry.database.read() as catalogue:
        stored = catalogue.adapters.vectors(base_fingerprint, encoder_digest)
    damaged = [member for member in members if not _is_whole(registry, stored.get(member.adapter_id))]
    if not damaged:
        return False
    lost: list[tuple[MemberRow, str]] = []
    with registry.database.write() as catalogue:
        stored = catalogue.adapters.vectors(base_fingerprint, encoder_digest)
        for member in damaged:
            vectors = stored.get(member.adapter_id)
            if vectors is None or _is_whole(registry, vectors):
                continue
            if not _enqueue_embedding(registry, catalogue, member, encoder_digest):
                lost.append((member, vectors.blob))
    if lost:
        more = f" So are those of {len(lost) - 1} more adapters." if len(lost) > 1 else ""
        first, blob = lost[0]
        raise DamagedBlob(
            f"The vectors of {first.ref} are damaged (blob {blob}), and without text they cannot be computed again: "
            f"push it again with its sample, or ask the operator to restore a copy.{more}",
            param="digest",
        )
    return True


def _is_whole(registry: Registry, stored: StoredVectors | None) -> bool:
    return stored is not None and registry.blobs.is_whole(stored.blob)


def _enqueue_embedding(registry: Registry, catalogue: Catalogue, member: MemberRow, encoder_digest: str) -> bool:
    """Queue the embedding of a member's sample, unless it was purged; returns False where its text is not whole."""
    row = catalogue.adapters.get_or_none(member.adapter_id)
    if row is None:
        return True
    if row.sample is None or not row.sample.has_text or not registry.blobs.is_whole(row.sample.digest):
        return False
    catalogue.samples.forget_embedding(row.sample.digest, encoder_digest)
    catalogue.adapters.set_sample_state(row.id, "pending")
    job = enqueue_embed(catalogue, row, created_by=row.created_by)
    log.warning("the vectors of %s are damaged: they are made again from its sample by %s", row.ref, job)
    catalogue.audit.record(
        "sample.embed_again",
        row.ref,
        key_id=None,
        request_id=None,
        detail={"by": ACTOR, "digest": row.digest, "job": job},
    )
    return True
