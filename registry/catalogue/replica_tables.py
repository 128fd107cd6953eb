"""Tables of what several servers of a database tell each other: that they are alive, and what is used of rates.

Imported by `replicas` and `rate_buckets`, which say what the columns mean.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Float, Integer, String, Table

from registry.catalogue.tables import metadata

replicas = Table(
    "replicas",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("bases", JSON, nullable=False),
    Column("beat", BigInteger, nullable=False),  # microseconds
    Column("seen_at", BigInteger, nullable=False),  # microseconds since 1970, by the database's clock
    # Only the last release reads and writes the rest: dropped one release later (docs/decisions/0062).
    Column("role", String(16), nullable=False, server_default="all"),
    Column("url", String(300)),
    Column("places", Integer, nullable=False, server_default="0"),
    Column("bank_bytes", BigInteger, nullable=False, server_default="0"),
    Column("requests", Integer, nullable=False, server_default="0"),
    Column("adapters", Integer, nullable=False, server_default="0"),
    Column("adapter_bytes", BigInteger, nullable=False, server_default="0"),
    Column("started_at", BigInteger, nullable=False, server_default="0"),
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
