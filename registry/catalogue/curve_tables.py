"""The losses of trainings by job, as a table. Imported by `curves`."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, String, Table

from registry.catalogue.tables import metadata

job_curves = Table(  # gone with their job, also where a server of the release before removes it, which knows no curves
    "job_curves",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("curve", JSON, nullable=False),
)
