"""Files that a request names: bytes inline, or digests of blobs that the caller may see; never a path.

Called by `push`, by `samples`, by whoever asks for a training, and where a blob was uploaded.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

from registry.catalogue.database import Catalogue
from registry.context import Caller, Registry
from registry.errors import Busy, InvalidManifest, NotFound, QuotaExceeded, TooLarge
from registry.quotas import check_stored, room_for_bytes
from registry.spec import FileSource


def read_file(registry: Registry, caller: Caller, source: FileSource, *, what: str, max_bytes: int) -> bytes:
    """The bytes of one file of a request; raises NotFound, TooLarge or InvalidManifest."""
    if source.digest is not None:
        return read_blob(registry, caller, source.digest, what=what, max_bytes=max_bytes)
    text, most = source.base64 or "", registry.limits.inline_bytes
    if len(text) * 3 // 4 > most:
        raise TooLarge(
            f"{what} is about {len(text) * 3 // 4} bytes inline and the limit is {most}: upload it as a blob and give "
            "its digest.",
            param=what,
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidManifest(f"{what} is not valid base64.", param=what) from None


def read_blob(registry: Registry, caller: Caller, digest: str, *, what: str, max_bytes: int) -> bytes:
    """The bytes of a blob that the caller may see; raises NotFound, TooLarge or DamagedBlob."""
    size = blob_size(registry, caller, digest, what=what)
    if size > max_bytes:
        raise TooLarge(f"{what} has {size} bytes and the limit is {max_bytes}.", param=what)
    return registry.blobs.read(digest)


def is_damaged(registry: Registry, digest: str) -> bool:
    """Whether something is stored under a digest that is not what it says."""
    return registry.blobs.has(digest) and not registry.blobs.is_whole(digest)


def too_large(limit: int) -> TooLarge:
    """The refusal of more bytes than a blob may have."""
    return TooLarge(f"A blob may have at most {limit} bytes here (SOUP_MAX_BLOB_BYTES).")


def room_for_blob(registry: Registry, caller: Caller, digest: str | None) -> tuple[int, QuotaExceeded] | None:
    """The most bytes that a new blob may add to what the caller has, and the refusal of more; None for no limit.

    What the caller sees already adds nothing. `record_blob` decides: this spares the disk what nobody would have.
    """
    with registry.database.read() as catalogue:
        if digest is not None and catalogue.blobs.is_visible(caller.namespaces, digest):
            return None
        return room_for_bytes(catalogue, registry.quotas, key_id=caller.key_id, namespaces=caller.namespaces or ())


def record_blob(
    registry: Registry, catalogue: Catalogue, caller: Caller, digest: str, size: int, *, repaired: bool
) -> None:
    """Record that a caller uploaded a stored blob: its namespaces see it from now on. Raises QuotaExceeded, or Busy.

    The audit has one namespace an entry: what the key of several uploads is told to keys that see all.
    """
    if repaired:
        caller.audit(catalogue, "blob.repair", digest)
    only = caller.namespaces[0] if caller.namespaces is not None and len(caller.namespaces) == 1 else None
    caller.audit(catalogue, "blob.upload", digest, namespace=only, size=size)
    catalogue.blobs.record(digest, size)
    if not registry.blobs.has(digest):  # the same bytes were there before, and were collected since they came
        raise Busy("This blob was removed while it was stored; send it again.", retry_after=1)
    for namespace in caller.namespaces or ():
        catalogue.blobs.grant(namespace, digest)
    catalogue.blobs.record_upload(caller.key_id, digest)
    check_stored(catalogue, registry.quotas, "stored_bytes", key_id=caller.key_id, namespaces=caller.namespaces or ())


def ask_again(registry: Registry, digest: str, size: int) -> None:
    """Note that somebody who may upload asked for a visible blob, and so will not send it: a collection waits anew.

    Noted only where nobody did for half of the grace period, since it is a write.
    """
    if registry.retention.grace is None:
        return
    since = datetime.now(UTC) - registry.retention.grace / 2
    with registry.database.read() as catalogue:
        seen_at = catalogue.blobs.seen_at(digest)
    if seen_at is not None and seen_at < since:
        with registry.database.write() as catalogue:
            if catalogue.blobs.seen_at(digest) is not None:
                catalogue.blobs.record(digest, size)


def blob_size(registry: Registry, caller: Caller, digest: str, *, what: str) -> int:
    """The size of a blob that the caller may see; unknown and foreign are the same NotFound. Raises DamagedBlob."""
    with registry.database.read() as catalogue:
        visible = catalogue.blobs.is_visible(caller.namespaces, digest)
    if not visible:
        raise NotFound(f"Blob {digest} is not known: upload it first with PUT /v1/blobs/{digest}.", param=what)
    return registry.blobs.size(digest)
