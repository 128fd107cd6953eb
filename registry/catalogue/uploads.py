"""Unfinished multipart uploads: their key, what has been received, and when they expire.

The bytes are files, or objects whose digests are stored here.
"""

from __future__ import annotations

import builtins
import secrets
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Column, ForeignKey, String, Table, and_, func, select

from registry.catalogue.repository import Repository, now
from registry.catalogue.rows import PartRow, UploadRow
from registry.catalogue.tables import DIGEST, Microseconds, metadata
from registry.errors import NotFound
from registry.spec import UploadPart

upload_sessions = Table(
    "upload_sessions",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("key_id", String(64), nullable=False, index=True),
    Column("digest", DIGEST),
    Column("size", BigInteger),
    Column("received", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),  # bytes it may have once the part that is being sent has arrived
    Column("created_at", Microseconds, nullable=False),
    Column("expires_at", Microseconds, nullable=False, index=True),
)
upload_parts = Table(
    "upload_parts",
    metadata,
    Column("upload_id", String(32), ForeignKey("upload_sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("digest", DIGEST, nullable=False),  # not of a blob
    Column("added_at", Microseconds, nullable=False),
)


COLUMNS = [column for column in upload_sessions.c if column.name != "reserved"]
PART_COLUMNS = [column for column in upload_parts.c if column.name != "upload_id"]
PARTS = TypeAdapter(list[PartRow])


class Uploads(Repository[UploadRow]):
    """Rows of uploads; expired uploads are not found."""

    values = TypeAdapter(UploadRow)

    def add(self, key_id: str, *, digest: str | None, size: int | None, expires_at: datetime) -> UploadRow:
        """Open an upload."""
        id_ = "upload-" + secrets.token_hex(12)
        self._insert(
            upload_sessions,
            id=id_,
            key_id=key_id,
            digest=digest,
            size=size,
            received=0,
            reserved=0,
            created_at=now(),
            expires_at=expires_at,
        )
        return self.get(key_id, id_)

    def get(self, key_id: str, id: str) -> UploadRow:
        """An upload of this key; raises NotFound, also for one of another key and for an expired one."""
        query = select(*COLUMNS).where(
            upload_sessions.c.id == id, upload_sessions.c.key_id == key_id, upload_sessions.c.expires_at > now()
        )
        row = self._first(query)
        if row is None:
            raise NotFound(
                "There is no such upload of this key: it was finished, deleted, or has expired. Open another.",
                param="id",
            )
        return row

    def list(self, key_id: str, *, digest: str | None = None) -> builtins.list[UploadRow]:
        """The uploads of this key, of a blob digest if one is given, newest first."""
        query = select(*COLUMNS).where(upload_sessions.c.key_id == key_id, upload_sessions.c.expires_at > now())
        if digest is not None:
            query = query.where(upload_sessions.c.digest == digest)
        return self._all(query.order_by(upload_sessions.c.created_at.desc(), upload_sessions.c.id))

    def reserved_by_others(self, key_id: str, id: str) -> int:
        """Bytes reserved by the key's uploads other than `id`."""
        query = select(func.coalesce(func.sum(upload_sessions.c.reserved), 0)).where(
            upload_sessions.c.key_id == key_id, upload_sessions.c.expires_at > now(), upload_sessions.c.id != id
        )
        return int(self._connection.execute(query).scalar_one())

    def reserve(self, id: str, up_to: int, *, expires_at: datetime) -> None:
        """Reserve the bytes up to `up_to` for a part that is being sent."""
        self._update(upload_sessions, upload_sessions.c.id == id, reserved=up_to, expires_at=expires_at)

    def release(self, id: str, received: int, up_to: int) -> None:
        """Cancel the reservation of a failed part, unless the upload has advanced or another part has reserved more."""
        is_unchanged = and_(upload_sessions.c.received == received, upload_sessions.c.reserved == up_to)
        self._update(upload_sessions, upload_sessions.c.id == id, is_unchanged, reserved=upload_sessions.c.received)

    def receive(self, id: str, received: int, *, expires_at: datetime) -> bool:
        """Record that `received` bytes are durable; returns False if the upload is gone."""
        values = {"received": received, "reserved": received, "expires_at": expires_at}
        return self._update(upload_sessions, upload_sessions.c.id == id, **values) == 1

    def list_parts(self, id: str) -> builtins.list[PartRow]:
        """The parts of an upload that are stored as objects, from byte 0 on."""
        query = select(*PART_COLUMNS).where(upload_parts.c.upload_id == id).order_by(upload_parts.c.start)
        return PARTS.validate_python([row._asdict() for row in self._connection.execute(query)])

    def add_part(self, id: str, upload_part: UploadPart) -> None:
        """Record a part that is stored as an object, of an upload that has to exist."""
        self._insert(upload_parts, upload_id=id, **upload_part.model_dump(), added_at=now())

    def remove(self, id: str) -> None:
        """Delete the row of an upload, and of its parts."""
        self._delete(upload_sessions, upload_sessions.c.id == id)

    def expired(self, moment: datetime) -> builtins.list[str]:
        """Ids of uploads that have expired by `moment`."""
        query = select(upload_sessions.c.id).where(upload_sessions.c.expires_at <= moment)
        return list(self._connection.execute(query).scalars())

    def remove_expired(self, moment: datetime) -> builtins.list[str]:
        """Remove the uploads that have expired by `moment`; returns their ids."""
        expired = self.expired(moment)
        self._delete(upload_sessions, upload_sessions.c.id.in_(expired))
        return expired

    def all_ids(self) -> set[str]:
        """Ids of all uploads of all keys."""
        return set(self._connection.execute(select(upload_sessions.c.id)).scalars())
