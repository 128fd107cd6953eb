"""Uploads in parts that are not whole yet: whose they are, how much is held, when they end; the bytes are files, or
objects that are named here."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Collection
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Column, ForeignKey, String, Table, delete, func, select, update

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
    Column("reserved", BigInteger, nullable=False),  # what it may take of the disk while a part is on its way
    Column("created_at", Microseconds, nullable=False),
    Column("expires_at", Microseconds, nullable=False, index=True),
)
upload_parts = Table(
    "upload_parts",
    metadata,
    Column("upload_id", String(32), ForeignKey("upload_sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("digest", DIGEST, nullable=False),  # of no blob: of an object beside them
    Column("added_at", Microseconds, nullable=False),
)


COLUMNS = [column for column in upload_sessions.c if column.name != "reserved"]
PART_COLUMNS = [column for column in upload_parts.c if column.name != "upload_id"]
PARTS = TypeAdapter(list[PartRow])


class Uploads(Repository[UploadRow]):
    """Rows of uploads. One that has expired is as good as none to whoever asks for it."""

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
        """An upload of this key; raises NotFound, also for one that is another's or has expired."""
        mine = (upload_sessions.c.id == id, upload_sessions.c.key_id == key_id, upload_sessions.c.expires_at > now())
        row = self._first(select(*COLUMNS).where(*mine))
        if row is None:
            raise NotFound(
                "There is no such upload of this key: it was finished, deleted, or has expired. Open another.",
                param="id",
            )
        return row

    def list(self, key_id: str, *, digest: str | None = None) -> builtins.list[UploadRow]:
        """The uploads of this key, newest first, or those that are to become this digest."""
        query = select(*COLUMNS).where(upload_sessions.c.key_id == key_id, upload_sessions.c.expires_at > now())
        if digest is not None:
            query = query.where(upload_sessions.c.digest == digest)
        return self._all(query.order_by(upload_sessions.c.created_at.desc(), upload_sessions.c.id))

    def reserved_beside(self, key_id: str, id: str) -> int:
        """Bytes that the other uploads of this key hold, or may before their parts have come."""
        others = (upload_sessions.c.key_id == key_id, upload_sessions.c.expires_at > now(), upload_sessions.c.id != id)
        query = select(func.coalesce(func.sum(upload_sessions.c.reserved), 0)).where(*others)
        return int(self._connection.execute(query).scalar_one())

    def reserve(self, id: str, up_to: int, *, expires_at: datetime) -> None:
        """A part is on its way that ends there."""
        its = update(upload_sessions).where(upload_sessions.c.id == id)
        self._connection.execute(its.values(reserved=up_to, expires_at=expires_at))

    def release(self, id: str, received: int, up_to: int) -> None:
        """A part that began there and was to end there does not come; nothing changes where another's did or may."""
        mine = (upload_sessions.c.received == received, upload_sessions.c.reserved == up_to)
        its = update(upload_sessions).where(upload_sessions.c.id == id, *mine)
        self._connection.execute(its.values(reserved=upload_sessions.c.received))

    def receive(self, id: str, received: int, *, expires_at: datetime) -> bool:
        """So many bytes are durable; False where the upload is gone."""
        its = update(upload_sessions).where(upload_sessions.c.id == id)
        changed = self._connection.execute(its.values(received=received, reserved=received, expires_at=expires_at))
        return changed.rowcount == 1

    def parts(self, id: str) -> builtins.list[PartRow]:
        """The parts of an upload that are objects, from byte 0 on."""
        query = select(*PART_COLUMNS).where(upload_parts.c.upload_id == id).order_by(upload_parts.c.start)
        return PARTS.validate_python([row._asdict() for row in self._connection.execute(query)])

    def add_part(self, id: str, part: UploadPart) -> None:
        """Name an object that was stored for this upload, which has to exist."""
        self._insert(upload_parts, upload_id=id, start=part.start, size=part.size, digest=part.digest, added_at=now())

    def cut(self, id: str, start: int) -> None:
        """Forget what came from byte `start` on, where a part begins."""
        beyond = (upload_parts.c.upload_id == id, upload_parts.c.start >= start)
        self._connection.execute(delete(upload_parts).where(*beyond))
        its = update(upload_sessions).where(upload_sessions.c.id == id)
        self._connection.execute(its.values(received=start, reserved=start))

    def remove(self, id: str) -> None:
        """Forget an upload."""
        self._connection.execute(delete(upload_sessions).where(upload_sessions.c.id == id))

    def expired(self, moment: datetime) -> builtins.list[str]:
        """Uploads that ended by themselves by then."""
        query = select(upload_sessions.c.id).where(upload_sessions.c.expires_at <= moment)
        return list(self._connection.execute(query).scalars())

    def remove_expired(self, ids: Collection[str], moment: datetime) -> builtins.list[str]:
        """Forget those of these uploads that have expired by then, whatever happened since they were listed; which."""
        these = (upload_sessions.c.id.in_(ids), upload_sessions.c.expires_at <= moment)
        found = list(self._connection.execute(select(upload_sessions.c.id).where(*these)).scalars())
        self._connection.execute(delete(upload_sessions).where(upload_sessions.c.id.in_(found)))
        return found

    def known(self) -> set[str]:
        """Every upload, of every key."""
        return set(self._connection.execute(select(upload_sessions.c.id)).scalars())
