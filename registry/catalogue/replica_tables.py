"""What several servers of a database tell each other, as tables: that they are there, and what is used of rates.

Imported by `replicas` and `rate_buckets`, which say what the columns mean.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Float, Integer, String, Table

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
    Column("version", String(32)),
    Column("revision", String(32)),
    CheckConstraint("role IN ('all', 'api', 'worker')", name="role"),
)
rate_buckets = Table(
    "rate_buckets",
    metadata,
    Column("subject", String(200), primary_key=True),
    Column("measure", String(16), primary_key=True),
    Column("used", Float(53), nullable=False),
    Column("at", BigInteger, nullable=False),  # microseconds since 1970, by the database's clock
)
