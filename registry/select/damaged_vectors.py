"""Vectors of samples that are damaged where they are stored: made again from the text, where that is there.

Called by `fit`, which is the one to read them. An adapter whose vectors are made again has a sample that is `pending`,
as if it had just been pushed: pools are fitted without it, and once more when it is embedded.
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
BY = "repair"
"""Who the audit says it was."""


def mend(registry: Registry, members: Sequence[MemberRow], *, base_fingerprint: str, encoder_digest: str) -> bool:
    """Have the vectors of those members made again that are damaged; False where all are there and whole.

    Those are left alone that are gone or whole by the time it can write: a purge, or another fit, has seen to them.
    Raises DamagedBlob for members without a whole text, naming the first, after the others are seen to.
    """
    with registry.database.read() as catalogue:
        stored = catalogue.adapters.vectors(base_fingerprint, encoder_digest)
    damaged = [one for one in members if not _is_whole(registry, stored.get(one.adapter_id))]
    if not damaged:
        return False
    lost: list[tuple[MemberRow, str]] = []
    with registry.database.write() as catalogue:
        stored = catalogue.adapters.vectors(base_fingerprint, encoder_digest)
        for member in damaged:
            now = stored.get(member.adapter_id)
            if now is None or _is_whole(registry, now):
                continue
            if not _again(registry, catalogue, member, encoder_digest):
                lost.append((member, now.blob))
    if lost:
        more = f" So are those of {len(lost) - 1} more adapters." if len(lost) > 1 else ""
        first, blob = lost[0]
        raise DamagedBlob(
            f"The vectors of {first.ref} are damaged (blob {blob}), and there is no text to make them from: push it "
            f"again with its sample, or have the operator put back a copy.{more}",
            param="digest",
        )
    return True


def _is_whole(registry: Registry, stored: StoredVectors | None) -> bool:
    return stored is not None and registry.blobs.is_whole(stored.blob)


def _again(registry: Registry, catalogue: Catalogue, member: MemberRow, encoder_digest: str) -> bool:
    """Queue the embedding of a member's sample, unless it was purged; False where it has no whole text."""
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
        "sample.embed_again", row.ref, key_id=None, request_id=None, detail={"by": BY, "digest": row.digest, "job": job}
    )
    return True
