"""Bodies of `/v1/jobs`, and how a catalogue row becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from service.http.schemas.wire import Wire

if TYPE_CHECKING:
    from registry.catalogue.rows import JobRow


class Progress(Wire):
    """How far a job is."""

    done: int
    total: int
    message: str


class Job(Wire):
    """Work that outlives its request."""

    object: Literal["job"] = "job"
    id: str
    kind: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    progress: Progress
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int
    created_at: datetime
    updated_at: datetime


def job_body(row: JobRow, result: Mapping[str, Any] | None = None) -> Job:
    """A row as its body; `result` stands for the stored one where a kind shows it otherwise."""
    progress: Mapping[str, Any] = row.progress or {}
    shown = {
        "progress": Progress(
            done=progress.get("done", 0), total=progress.get("total", 0), message=progress.get("message", "")
        ),
        "result": row.result if result is None else dict(result),
    }
    return Job(**{name: getattr(row, name) for name in Job.model_fields if hasattr(row, name)} | shown)


class JobList(Wire):
    """One page of jobs, newest first."""

    object: Literal["list"] = "list"
    data: list[Job]
    next_cursor: str | None = None
