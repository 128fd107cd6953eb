"""Loss curves of training jobs that have not produced an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import JSON, Column, ForeignKey, String, Table, select

from registry.catalogue.repository import TableGateway
from registry.catalogue.tables import metadata

job_curves = Table(  # deleted by the database with their job: the previous release removes jobs and has no curves
    "job_curves",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("curve", JSON, nullable=False),
)


class Curves(TableGateway):
    """Curve rows; a curve has `train_history`, `valid_history` and `best_step`, like a training's record."""

    def put(self, job: str, curve: Mapping[str, Any]) -> None:
        """Store or replace the curve of a job."""
        if self._update(job_curves, job_curves.c.job == job, curve=dict(curve)) == 0:
            self._insert(job_curves, job=job, curve=dict(curve))

    def get(self, job: str) -> dict[str, Any] | None:
        """The curve of a job, None if it has none."""
        curve = self._connection.scalars(select(job_curves.c.curve).where(job_curves.c.job == job)).one_or_none()
        return None if curve is None else dict(curve)

    def remove(self, job: str) -> None:
        """Delete the curve of a job."""
        self._delete(job_curves, job_curves.c.job == job)
