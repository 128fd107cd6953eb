"""Uploads that are not whole yet, and their parts that are objects, as tables. Imported by `uploads`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, String, Table

from registry.catalogue.tables import DIGEST, Microseconds, metadata

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
