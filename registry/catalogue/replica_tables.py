"""The servers of a database as a table. Imported by `replicas`, which says what the columns mean."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Integer, String, Table

from registry.catalogue.tables import Microseconds, metadata

replicas = Table(  # their moments are the database's
    "replicas",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("url", String(300)),
    Column("bases", JSON, nullable=False),
    Column("places", Integer, nullable=False),
    Column("bank_bytes", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),  # microseconds
    Column("requests", Integer, nullable=False),
    Column("adapters", Integer, nullable=False),
    Column("adapter_bytes", BigInteger, nullable=False),
    Column("started_at", Microseconds, nullable=False),
    Column("seen_at", Microseconds, nullable=False),
    CheckConstraint("role IN ('all', 'api', 'worker')", name="role"),
)
