"""Uploads in parts: opened, added to, asked for their offset, finished as a blob, deleted, and swept when they expire.

Called by the routes of `/v1/blobs/uploads`, and by the runner for the sweep. An upload is its key's alone. What is
acknowledged is durable and in the database: the offset is what both of them hold, and bytes beyond it were never
acknowledged. Parts come one after the other: of two that are for the same place one is taken.
"""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from registry.blobs import LostPartError, OpenUpload, UploadStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import UploadRow
from registry.context import Caller, Registry
from registry.errors import Busy, Conflict, DigestMismatch, InvalidParameter, NotFound, SoupError, WrongOffset
from registry.spec import UploadPart
from registry.uploads.files import is_damaged, record_blob, room_for_blob, too_large

log = logging.getLogger("soup.blobs")
MOST_PARTS = 10_000
"""Parts of an upload that are objects: each is a row, and an object to be read at the end."""


@dataclass(frozen=True)
class UploadLimits:
    """Uploads of one key at once and bytes of them all, bytes of a blob, how long one is kept after its last part."""

    open: int = 32
    held: int = 8 * 2**30
    blob: int = 2 * 2**30
    keep: timedelta = timedelta(days=1)


class UploadSessions:
    """The uploads in parts, as one server sees them."""

    def __init__(self, registry: Registry, files: UploadStore, limits: UploadLimits) -> None:
        self._registry = registry
        self._database = registry.database
        self._files = files
        self.limits = limits

    def open(self, caller: Caller, *, digest: str | None = None, size: int | None = None) -> UploadRow:
        """Open an upload, of what is to have this digest and size if that is known.

        Raises TooLarge, QuotaExceeded where it would have no room at its end, or Busy.
        """
        self._check_size(size or 0)
        self.check_room(caller, digest, size or 0)
        self._files.blobs.check()
        with self._database.write() as catalogue:
            if len(catalogue.uploads.list(caller.key_id)) >= self.limits.open:
                raise Busy(
                    f"This key has {self.limits.open} uploads open, the most at once (SOUP_MAX_UPLOADS): finish or "
                    "delete one of them, which GET /v1/blobs/uploads lists, or wait until they expire.",
                    retry_after=5,
                )
            return catalogue.uploads.add(caller.key_id, digest=digest, size=size, expires_at=self._end())

    def get(self, caller: Caller, id: str) -> UploadRow:
        """An upload of the caller's key, with what is really held of it; raises NotFound."""
        with self._database.read() as catalogue:
            return self._held(catalogue, catalogue.uploads.get(caller.key_id, id))

    def list(self, caller: Caller, *, digest: str | None = None) -> builtins.list[UploadRow]:
        """The uploads of the caller's key, newest first; all, or those that are to have this digest."""
        with self._database.read() as catalogue:
            return [self._held(catalogue, row) for row in catalogue.uploads.list(caller.key_id, digest=digest)]

    def delete(self, caller: Caller, id: str) -> None:
        """Delete an upload and what is held of it; a part that is on its way is refused at its end."""
        with self._database.write() as catalogue:
            row = catalogue.uploads.get(caller.key_id, id)
            catalogue.uploads.remove(row.id)
        self._files.remove(row.id)

    @contextmanager
    def part(self, caller: Caller, id: str, *, start: int | None, stop: int | None) -> Iterator[Part]:
        """A part from `start` to before `stop` (None: as far as may be), to be written; without `start` there is none.

        Raises NotFound, TooLarge, InvalidParameter, Busy beyond what a key may hold, and WrongOffset where the part
        does not begin at the offset or another is being written.
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
                    f"Another request is writing to this upload, of which {row.received} bytes are held: ask for the "
                    "offset again, and go on there.",
                    offset=row.received,
                ) from None
            try:
                row = self._begin(caller, row, file, start)
            except NotFound:  # it was deleted before it was held, and left to whoever holds it
                file.discard()
                raise
            part = self._reserved(row, file, stop if start is not None else row.received)
            try:
                yield part
            except BaseException:
                self._release(row, part.reserved)
                raise

    def sweep(self) -> int:
        """Remove uploads that have expired, and files of none that are as old; returns how many files."""
        moment = datetime.now(UTC)
        with self._database.read() as catalogue:
            expired = catalogue.uploads.expired(moment)
        ended, count = [id for id in expired if not self._files.is_held(id)], 0
        if ended:
            with self._database.write() as catalogue:
                ended = catalogue.uploads.remove_expired(ended, moment)
            count = sum(self._files.remove(id) for id in ended)
        old = list(self._files.older_than(time.time() - self.limits.keep.total_seconds()))
        if old:
            with self._database.read() as catalogue:
                known = catalogue.uploads.all_ids()
            count += sum(self._files.remove(id) for id in old if id not in known)
        if count:
            log.info("%d unfinished uploads have expired and are removed", count)
        return count

    def receive(self, row: UploadRow, received: int, part: UploadPart | None = None) -> UploadRow:
        """Record what is durable of an upload, and the part that it has to name.

        Raises NotFound where it was deleted or has expired meanwhile, WrongOffset where another's part was taken.
        """
        with self._database.write() as catalogue:
            if not catalogue.uploads.receive(row.id, received, expires_at=self._end()):
                raise NotFound("This upload was deleted while the part came.", param="id")
            if part is not None:
                parts = catalogue.uploads.list_parts(row.id)
                held = parts[-1].stop if parts else 0
                if held != part.start:
                    raise WrongOffset(
                        f"Another request has written to this upload, of which {held} bytes are held: go on there.",
                        offset=held,
                    )
                catalogue.uploads.add_part(row.id, part)
            return catalogue.uploads.get(row.key_id, row.id)

    def is_taken(self, row: UploadRow, part: UploadPart) -> bool:
        """Whether other bytes were taken for the place of a part."""
        with self._database.read() as catalogue:
            named = catalogue.uploads.list_parts(row.id)
        return any(one.start == part.start and one.digest != part.digest for one in named)

    def cut(self, row: UploadRow, lost: UploadPart) -> WrongOffset:
        """Forget a part that the store has lost, and what came after it; the refusal that says where to go on.

        Nothing is forgotten where another request was told of that first, and what came since is there. Raises
        NotFound where the upload has ended meanwhile, whose parts are gone for that.
        """
        with self._database.write() as catalogue:
            catalogue.uploads.get(row.key_id, row.id)
            parts = catalogue.uploads.list_parts(row.id)
            if lost in parts:
                catalogue.uploads.truncate(row.id, lost.start)
        if lost not in parts:
            held = parts[-1].stop if parts else 0
            return WrongOffset(
                f"What the store had lost of this upload was asked for again by another request, and {held} bytes are "
                "held now: go on there.",
                offset=held,
            )
        log.error("the store of the blobs has lost a part of an unfinished upload, which is asked for again")
        return WrongOffset(
            f"The store has lost what came of this upload from byte {lost.start} on: send it again from there.",
            offset=lost.start,
        )

    def check_room(self, caller: Caller, digest: str | None, size: int) -> None:
        """Raises QuotaExceeded where a blob of this size is more than the caller may add."""
        left = room_for_blob(self._registry, caller, digest)
        if left is not None and size > left[0]:
            raise left[1]

    def _begin(self, caller: Caller, row: UploadRow, file: OpenUpload, start: int | None) -> UploadRow:
        """See that a part begins where the upload ends, now that it is open: nobody adds to a file meanwhile."""
        with self._database.read() as catalogue:
            row = self._held(catalogue, catalogue.uploads.get(caller.key_id, row.id))
            parts = catalogue.uploads.list_parts(row.id)
        if start is not None and len(parts) >= MOST_PARTS:
            raise InvalidParameter(
                f"This upload has {len(parts)} parts, the most there may be: open another, and send larger ones.",
                param="content-range",
            )
        if start is not None and start != row.received:
            raise WrongOffset(
                f"The part begins at byte {start}, and {row.received} bytes of this upload are held: go on there.",
                offset=row.received,
                param="content-range",
            )
        file.begin(row.received, parts)
        return row

    def _reserved(self, row: UploadRow, file: OpenUpload, stop: int | None) -> Part:
        """The part, once there is room for it among what its key may hold; raises Busy."""
        stop = row.size if stop is None else stop
        up_to = self.limits.blob if stop is None else stop
        with self._database.write() as catalogue:
            beside = catalogue.uploads.reserved_beside(row.key_id, row.id)
            if beside and up_to > row.received and beside + up_to > self.limits.held:
                raise Busy(
                    f"The unfinished uploads of this key would hold {beside + up_to} bytes, of {self.limits.held} at "
                    "most (SOUP_MAX_UPLOAD_BYTES): finish or delete one of them, which GET /v1/blobs/uploads lists.",
                    retry_after=5,
                )
            catalogue.uploads.reserve(row.id, up_to, expires_at=self._end())
        return Part(self, self._registry, row, file, stop=stop, reserved=up_to)

    def _release(self, row: UploadRow, reserved: int) -> None:
        """Give back what a part that failed was to take; where that cannot be stored, its next part does."""
        with suppress(SoupError), self._database.write() as catalogue:
            catalogue.uploads.release(row.id, row.received, reserved)

    def _held(self, catalogue: Catalogue, row: UploadRow) -> UploadRow:
        """A row with what is there: an older copy of the database, or of the disk, knows less."""
        return replace(row, received=self._files.held(row.id, row.received, catalogue.uploads.list_parts(row.id)))

    def _check_size(self, size: int) -> None:
        if size > self.limits.blob:
            raise too_large(self.limits.blob)

    def _end(self) -> datetime:
        return datetime.now(UTC) + self.limits.keep


class Part:
    """A part of an upload that is being written: `write`, then `keep` it, or `commit` all as a blob."""

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
        """The byte before which the upload may end while the part comes."""

    def write(self, chunk: bytes) -> None:
        """Append; raises InvalidParameter beyond what was announced, TooLarge beyond what a blob may have."""
        end = self._file.end + len(chunk)
        if self._stop is not None and end > self._stop:
            raise InvalidParameter(
                f"More than the {self._stop - self._start} bytes came that were announced; nothing of them is kept.",
                param="content-range",
            )
        if end > self._sessions.limits.blob:
            raise too_large(self._sessions.limits.blob)
        self._file.write(chunk)

    def check_whole(self) -> None:
        """Raises InvalidParameter where less came than was announced."""
        if self._stop is not None and self._file.end != self._stop:
            raise InvalidParameter(
                f"{self._file.end - self._start} of the {self._stop - self._start} bytes came that were announced; "
                "none of them is kept.",
                param="content-range",
            )

    def keep(self) -> UploadRow:
        """Make what came durable and acknowledge it, all of the part or the beginning of it."""
        if self._file.end == self._start:  # nothing to keep: what was reserved is given back all the same
            return self._sessions.receive(self._row, self._start)
        part = None
        try:
            part = self._file.keep()
            return self._sessions.receive(self._row, self._file.end, part)
        except NotFound:
            self._file.discard()
            raise
        except WrongOffset:
            if part is not None and self._sessions.is_taken(self._row, part):
                self._file.withdraw(part)
            raise

    def commit(self, caller: Caller, digest: str) -> int:
        """Make the upload the blob of this digest, as an upload in one request would; its size.

        Raises InvalidParameter where it was opened for another digest or size, and it stays; DigestMismatch where its
        bytes have another digest, and it is deleted: no part that could follow would mend them.
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
            self._file.store(digest)
        except DigestMismatch:
            with self._registry.database.write() as catalogue:
                catalogue.uploads.remove(row.id)
            self._file.discard()
            raise
        except LostPartError as lost:
            raise self._sessions.cut(row, lost.part) from lost
        with self._registry.database.write() as catalogue:
            record_blob(self._registry, catalogue, caller, digest, size, repaired=repaired)
            catalogue.uploads.remove(row.id)
        self._file.finish()
        return size
