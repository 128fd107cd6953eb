"""Bodies of `/v1/jobs`, and how a catalogue row becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from service.http.schemas.wire import Page, Wire

if TYPE_CHECKING:
    from registry.catalogue.rows import JobRow


class Progress(Wire):
    """The progress of a job."""

    done: int
    total: int
    message: str


class Job(Wire):
    """Work that outlives its request. `created_by` is the key that requested it, `owner` the name of that key.

    Both are null for a reader that does not see all namespaces the job works on; `owner` also if the requesting key
    sees namespaces that the reader does not. `started_at` is the start of the last attempt, null for a job that was
    cancelled before it ran.
    """

    object: Literal["job"] = "job"
    id: str
    kind: str
    created_by: str | None
    owner: str | None
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    progress: Progress
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def job_body(row: JobRow) -> Job:
    """Return a job row as its body, complete: `service.http.answers.jobs` hides fields from some keys."""
    fields = {name: getattr(row, name) for name in Job.model_fields if hasattr(row, name)}
    return Job(**fields | {"progress": _progress(row)})


def _progress(row: JobRow) -> Progress:
    """Return the stored progress, completed for a job that succeeded: its last steps may not have been stored."""
    stored: Mapping[str, Any] = row.progress or {}
    total = stored.get("total", 0)
    if row.state == "succeeded":
        return Progress(done=total, total=total, message="")
    return Progress(done=stored.get("done", 0), total=total, message=stored.get("message", ""))


class JobList(Page[Job]):
    """One page of jobs, newest first."""
