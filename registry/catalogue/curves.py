"""The losses of trainings that no adapter has come of, yet or at all, by their job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import JSON, Column, Connection, ForeignKey, String, Table, delete, insert, select, update

from registry.catalogue.tables import metadata

job_curves = Table(  # gone with their job, also where a server of the release before removes it, which knows no curves
    "job_curves",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("curve", JSON, nullable=False),
)


class Curves:
    """Curve rows; a curve is `train_history`, `valid_history` and `best_step`, as the record of a training has them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, job: str, curve: Mapping[str, Any]) -> None:
        """Keep the curve of a job, in the place of what it was before."""
        values = {"curve": dict(curve)}
        changed = self._connection.execute(update(job_curves).where(job_curves.c.job == job).values(values))
        if not changed.rowcount:
            self._connection.execute(insert(job_curves).values(job=job, **values))

    def of(self, job: str) -> dict[str, Any] | None:
        """The curve of a job, None where there is none."""
        found = self._connection.scalars(select(job_curves.c.curve).where(job_curves.c.job == job)).one_or_none()
        return None if found is None else dict(found)

    def remove(self, job: str) -> None:
        """Keep the curve of a job no longer."""
        self._connection.execute(delete(job_curves).where(job_curves.c.job == job))
