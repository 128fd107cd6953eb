"""Files of a request: inline bytes, or digests of blobs that the caller may see; never paths.

Called by `push`, `samples`, requests for trainings, and uploads of blobs.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

from registry.catalogue.database import Catalogue
from registry.context import Caller, Registry
from registry.errors import Busy, InvalidManifest, NotFound, TooLarge
from registry.quotas import ByteAllowance, byte_allowance, check_stored
from registry.spec import FileSource


def read_file(registry: Registry, caller: Caller, source: FileSource, *, field: str, max_bytes: int) -> bytes:
    """The bytes of a file of a request, `field` of its JSON; raises NotFound, TooLarge or InvalidManifest."""
    if source.digest is not None:
        return read_blob(registry, caller, source.digest, field=field, max_bytes=max_bytes)
    text, most = source.base64 or "", registry.limits.inline_bytes
    if len(text) * 3 // 4 > most:
        raise TooLarge(
            f"{field} is about {len(text) * 3 // 4} bytes inline and the limit is {most}: upload it as a blob and give "
            "its digest.",
            param=field,
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidManifest(f"{field} is not valid base64.", param=field) from None


def read_blob(registry: Registry, caller: Caller, digest: str, *, field: str, max_bytes: int) -> bytes:
    """The bytes of a blob that the caller may see; raises NotFound, TooLarge or DamagedBlob."""
    size = blob_size(registry, caller, digest, field=field)
    if size > max_bytes:
        raise TooLarge(f"{field} has {size} bytes and the limit is {max_bytes}.", param=field)
    return registry.blobs.read(digest)


def is_damaged(registry: Registry, digest: str) -> bool:
    """Return True if a blob is stored whose bytes have another digest."""
    return registry.blobs.has(digest) and not registry.blobs.is_whole(digest)


def too_large(limit: int) -> TooLarge:
    """The error for more bytes than a blob may have."""
    return TooLarge(f"A blob may have at most {limit} bytes here (SOUP_MAX_BLOB_BYTES).")


def room_for_blob(registry: Registry, caller: Caller, digest: str | None) -> ByteAllowance | None:
    """The bytes that the caller may still store; None without a limit, or if it sees the blob.

    `record_blob` enforces the limit: this check only avoids writing a blob that would be refused.
    """
    with registry.database.read() as catalogue:
        if digest is not None and catalogue.blobs.is_visible(caller.namespaces, digest):
            return None
        return byte_allowance(catalogue, registry.quotas, key_id=caller.key_id, namespaces=caller.namespaces or ())


def record_blob(
    registry: Registry, catalogue: Catalogue, caller: Caller, digest: str, size: int, *, repaired: bool
) -> None:
    """Record that a caller uploaded a stored blob, which its namespaces then see; raises QuotaExceeded, or Busy.

    An entry of the audit log has one namespace: for a key of several it has none, and only keys that see all read it.
    """
    if repaired:
        caller.audit(catalogue, "blob.repair", digest)
    only = caller.namespaces[0] if caller.namespaces is not None and len(caller.namespaces) == 1 else None
    caller.audit(catalogue, "blob.upload", digest, namespace=only, size=size)
    catalogue.blobs.record(digest, size)
    if not registry.blobs.has(digest):  # a collection has removed the same bytes since they were stored
        raise Busy("This blob was removed while it was stored; send it again.", retry_after=1)
    for namespace in caller.namespaces or ():
        catalogue.blobs.grant(namespace, digest)
    catalogue.blobs.record_upload(caller.key_id, digest)
    check_stored(catalogue, registry.quotas, "stored_bytes", key_id=caller.key_id, namespaces=caller.namespaces or ())


def renew_blob(registry: Registry, digest: str, size: int) -> None:
    """Restart the grace period of a blob that a client has found stored and therefore will not upload.

    Only after half of the grace period, since it is a write.
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


def blob_size(registry: Registry, caller: Caller, digest: str, *, field: str) -> int:
    """The size of a blob that the caller may see; raises NotFound for unknown and foreign ones, or DamagedBlob."""
    with registry.database.read() as catalogue:
        visible = catalogue.blobs.is_visible(caller.namespaces, digest)
    if not visible:
        raise NotFound(f"Blob {digest} is not known: upload it first with PUT /v1/blobs/{digest}.", param=field)
    return registry.blobs.size(digest)
