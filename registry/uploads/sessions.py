"""Uploads in parts: opened, appended to, finished as a blob, deleted, and removed when they expire.

Called by the routes of `/v1/blobs/uploads`, and by the runner for the sweep. An upload belongs to one key. An
acknowledged part is durable and recorded in the database; the offset is the number of bytes that both have, and bytes
after it were never acknowledged. Parts are sent in order: of two for the same offset one is accepted.
"""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from registry.blobs import AcknowledgedUpload, OpenUpload, UploadStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import UploadRow
from registry.context import Caller, Registry
from registry.errors import Busy, Conflict, DigestMismatch, InvalidParameter, NotFound, SoupError, WrongOffset
from registry.spec import UploadPart
from registry.spec.limits import UploadLimits
from registry.stored.files import deleted_unless_recorded
from registry.uploads.files import is_damaged, record_blob, room_for_blob, too_large

log = logging.getLogger("soup.blobs")
MAX_PARTS = 10_000
"""Parts of an upload that are objects: each is a row, and an object to be read at the end."""


class UploadSessions:
    """The uploads in parts, as one server sees them."""

    def __init__(self, registry: Registry, files: UploadStore, limits: UploadLimits) -> None:
        self._registry = registry
        self._database = registry.database
        self._files = files
        self.limits = limits

    def open(self, caller: Caller, *, digest: str | None = None, size: int | None = None) -> UploadRow:
        """Open an upload, for a blob of this digest and size if they are given.

        Raises TooLarge, QuotaExceeded if a blob of this size would exceed a quota, or Busy.
        """
        self._check_size(size or 0)
        self.check_room(caller, digest, size or 0)
        self._files.blobs.check()
        with self._database.write() as catalogue:
            if len(catalogue.uploads.list(caller.key_id)) >= self.limits.uploads:
                raise Busy(
                    f"This key has {self.limits.uploads} open uploads, the maximum (SOUP_MAX_UPLOADS): finish or "
                    "delete one (GET /v1/blobs/uploads lists them), or wait until they expire.",
                    retry_after=5,
                )
            return catalogue.uploads.add(caller.key_id, digest=digest, size=size, expires_at=self._expires_at())

    def get(self, caller: Caller, id: str) -> UploadRow:
        """An upload of the caller's key, with the number of bytes that are durable; raises NotFound."""
        with self._database.read() as catalogue:
            return self._check_received(catalogue, catalogue.uploads.get(caller.key_id, id))

    def list(self, caller: Caller, *, digest: str | None = None) -> builtins.list[UploadRow]:
        """The uploads of the caller's key, of a blob digest if one is given, newest first."""
        with self._database.read() as catalogue:
            rows = catalogue.uploads.list(caller.key_id, digest=digest)
            return [self._check_received(catalogue, row) for row in rows]

    def delete(self, caller: Caller, id: str) -> None:
        """Delete an upload and its bytes; a part that is being sent is refused at its end."""
        with self._database.write() as catalogue:
            row = catalogue.uploads.get(caller.key_id, id)
            catalogue.uploads.remove(row.id)
        self._files.remove(row.id)

    @contextmanager
    def open_part(self, caller: Caller, id: str, *, start: int | None, stop: int | None) -> Iterator[PartWriter]:
        """A writer of the part from `start` to before `stop` (None: of any length); no part if `start` is None.

        Raises NotFound, TooLarge, InvalidParameter, Busy for more bytes than a key may have, and WrongOffset if the
        part does not begin at the offset, or another one is being written.
        """
        row = self.get(caller, id)
        self._check_size(stop or 0)
        if row.size is not None and stop is not None and stop > row.size:
            raise InvalidParameter(
                f"The part ends at byte {stop} of an upload that was opened for {row.size}.", param="content-range"
            )
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._files.open(row.id))
            except Conflict:
                raise WrongOffset(
                    f"Another request is writing to this upload, which has {row.received} bytes: ask for its offset, "
                    "and continue there.",
                    offset=row.received,
                ) from None
            try:
                row = self._begin(caller, row, file, start)
            except NotFound:  # deleted before the file was locked: a locked file is left to its writer
                file.remove()
                raise
            writer = self._reserve(row, file, stop if start is not None else row.received)
            try:
                yield writer
            except BaseException:
                self._release(row, writer.reserved)
                raise

    def sweep(self) -> int:
        """Remove expired uploads, and equally old files without a row; returns the number of removed files."""
        moment, count = datetime.now(UTC), 0
        with self._database.read() as catalogue:
            has_expired = bool(catalogue.uploads.expired(moment))
        if has_expired:
            with self._database.write() as catalogue:
                expired = catalogue.uploads.remove_expired(moment)
            count = sum(self._files.remove(id) for id in expired)
        old = list(self._files.older_than(time.time() - self.limits.lifetime.total_seconds()))
        if old:
            with self._database.read() as catalogue:
                ids = catalogue.uploads.all_ids()
            count += sum(self._files.remove(id) for id in old if id not in ids)
        if count:
            log.info("%d unfinished uploads have expired and are removed", count)
        return count

    def receive(self, row: UploadRow, received: int, upload_part: UploadPart | None = None) -> UploadRow:
        """Record that `received` bytes are durable, and the part that is stored as an object, if any.

        Raises NotFound if the upload was deleted or has expired, WrongOffset if another part was recorded first.
        """
        with self._database.write() as catalogue:
            if not catalogue.uploads.receive(row.id, received, expires_at=self._expires_at()):
                raise NotFound("This upload was deleted while the part came.", param="id")
            if upload_part is not None:
                recorded = catalogue.uploads.list_parts(row.id)
                offset = recorded[-1].stop if recorded else 0
                if offset != upload_part.start:
                    raise WrongOffset(
                        f"Another request wrote to this upload, which has {offset} bytes: continue there.",
                        offset=offset,
                    )
                catalogue.uploads.add_part(row.id, upload_part)
            return catalogue.uploads.get(row.key_id, row.id)

    def check_room(self, caller: Caller, digest: str | None, size: int) -> None:
        """Raise QuotaExceeded if the caller may not store a blob of this size."""
        allowance = room_for_blob(self._registry, caller, digest)
        if allowance is not None:
            allowance.check(size)

    def _begin(self, caller: Caller, row: UploadRow, file: OpenUpload, start: int | None) -> UploadRow:
        """Check that a part begins at the offset, now that the file is locked."""
        with self._database.read() as catalogue:
            row = self._check_received(catalogue, catalogue.uploads.get(caller.key_id, row.id))
            recorded = catalogue.uploads.list_parts(row.id)
        if start is not None and len(recorded) >= MAX_PARTS:
            raise InvalidParameter(
                f"This upload has {len(recorded)} parts, the most there may be: open another, and send larger ones.",
                param="content-range",
            )
        if start is not None and start != row.received:
            raise WrongOffset(
                f"The part begins at byte {start}, but this upload has {row.received} bytes: continue there.",
                offset=row.received,
                param="content-range",
            )
        file.begin(AcknowledgedUpload(row.id, row.received, recorded))
        return row

    def _reserve(self, row: UploadRow, file: OpenUpload, stop: int | None) -> PartWriter:
        """Reserve the bytes of a part among those that its key may have; raises Busy."""
        stop = row.size if stop is None else stop
        up_to = self.limits.blob_bytes if stop is None else stop
        with self._database.write() as catalogue:
            reserved = catalogue.uploads.reserved_by_others(row.key_id, row.id)
            if reserved and up_to > row.received and reserved + up_to > self.limits.reserved_bytes:
                raise Busy(
                    f"The unfinished uploads of this key would have {reserved + up_to} bytes; the maximum is "
                    f"{self.limits.reserved_bytes} (SOUP_MAX_UPLOAD_BYTES): finish or delete one (GET "
                    "/v1/blobs/uploads lists them).",
                    retry_after=5,
                )
            catalogue.uploads.reserve(row.id, up_to, expires_at=self._expires_at())
        return PartWriter(self, self._registry, row, file, stop=stop, reserved=up_to)

    def _release(self, row: UploadRow, reserved: int) -> None:
        """Release the reservation of a part that failed; if that cannot be stored, the next part replaces it."""
        with suppress(SoupError), self._database.write() as catalogue:
            catalogue.uploads.release(row.id, row.received, reserved)

    def _check_received(self, catalogue: Catalogue, row: UploadRow) -> UploadRow:
        """The row with the bytes that are stored, fewer if the database or the disk is an older copy."""
        upload = AcknowledgedUpload(row.id, row.received, catalogue.uploads.list_parts(row.id))
        return replace(row, received=self._files.durable_bytes(upload))

    def _check_size(self, size: int) -> None:
        if size > self.limits.blob_bytes:
            raise too_large(self.limits.blob_bytes)

    def _expires_at(self) -> datetime:
        return datetime.now(UTC) + self.limits.lifetime


class PartWriter:
    """A part of an upload while it is received: `write`, then `keep` it, or `commit` the upload as a blob."""

    def __init__(
        self,
        sessions: UploadSessions,
        registry: Registry,
        row: UploadRow,
        file: OpenUpload,
        *,
        stop: int | None,
        reserved: int,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._row = row
        self._file = file
        self._start = row.received
        self._stop = stop
        self.reserved = reserved
        """The size that the upload may have with this part."""

    def write(self, chunk: bytes) -> None:
        """Append; raises InvalidParameter beyond the announced bytes, TooLarge beyond those a blob may have."""
        end = self._file.end + len(chunk)
        if self._stop is not None and end > self._stop:
            raise InvalidParameter(
                f"The part has more than the announced {self._stop - self._start} bytes; none of them was kept.",
                param="content-range",
            )
        if end > self._sessions.limits.blob_bytes:
            raise too_large(self._sessions.limits.blob_bytes)
        self._file.write(chunk)

    def check_whole(self) -> None:
        """Raise InvalidParameter if fewer bytes came than were announced."""
        if self._stop is not None and self._file.end != self._stop:
            raise InvalidParameter(
                f"{self._file.end - self._start} of the announced {self._stop - self._start} bytes arrived; none "
                "of them was kept.",
                param="content-range",
            )

    def keep(self) -> UploadRow:
        """Make the received bytes durable and record them, all of the part or its beginning."""
        if self._file.end == self._start:  # nothing to keep, but the reservation is released
            return self._sessions.receive(self._row, self._start)
        try:
            return self._sessions.receive(self._row, self._file.end, self._file.keep())
        except NotFound:
            self._file.remove()
            raise

    def commit(self, caller: Caller, digest: str) -> int:
        """Make the upload the blob of this digest, like an upload by one request; returns its size.

        Raises InvalidParameter if the upload was opened for another digest or size; it stays open. Raises
        DigestMismatch if its bytes have another digest, NotFound if the store has lost some of them; it is deleted,
        since no further part could correct that.
        """
        row, size = self._row, self._file.end
        if row.digest not in {None, digest} or row.size not in {None, size}:
            raise InvalidParameter(
                f"The upload holds {size} bytes and is finished as {digest}; it was opened for "
                f"{size if row.size is None else row.size} bytes and {row.digest or 'any digest'}.",
                param="digest",
            )
        self._sessions.check_room(caller, digest, size)
        repaired = is_damaged(self._registry, digest)
        try:
            with self._registry.blobs.writer(digest, max_bytes=size, length=size) as writer:
                for chunk in self._file.chunks():
                    writer.write(chunk)
                writer.commit()
        except (DigestMismatch, NotFound):
            with self._registry.database.write() as catalogue:
                catalogue.uploads.remove(row.id)
            self._file.remove()
            raise
        with deleted_unless_recorded(self._registry, [digest]), self._registry.database.write() as catalogue:
            record_blob(self._registry, catalogue, caller, digest, size, repaired=repaired)
            catalogue.uploads.remove(row.id)
        self._file.remove()
        return size
