"""How well adapters predict samples, as a table. Imported by `evaluations` and `removals`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, String, Table, UniqueConstraint

from registry.catalogue.tables import DIGEST, Id, Microseconds, metadata

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("adapter_digest", DIGEST, nullable=False),
    Column("sample_digest", DIGEST, nullable=False, index=True),
    Column("passages", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("nll", Float(53), nullable=False),  # summed over the tokens, in nats
    Column("base_nll", Float(53), nullable=False),
    Column("standard_error", Float(53), nullable=False),  # of the difference of the two, a token
    Column("created_by", String(64), nullable=False),
    Column("evaluated_at", Microseconds, nullable=False),
    UniqueConstraint("adapter_digest", "sample_digest"),
)
