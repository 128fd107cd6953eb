"""Jobs in answers: their progress, their result, the error they ended with."""

from __future__ import annotations

from typing import Any

from registry.errors import Cancelled, Unavailable, rebuild
from registry.progress import Progress
from service.client.answers import Json

MAX_FITS = 5
LONGEST_EMBEDDING = 3600
"""Seconds that are waited for the samples of a pool of which none is embedded yet."""
DONE = frozenset({"succeeded", "failed", "cancelled"})


def report_progress(value: Any, progress: Progress | None) -> None:
    """Report the progress in an event of a job, if there is any."""
    event = value.get("progress", value) if isinstance(value, dict) else None
    if progress is not None and isinstance(event, dict) and "done" in event:
        progress(int(event["done"]), int(event.get("total") or 0), str(event.get("message") or ""))


def result_in(job: Json) -> Json:
    """The result of a job that has succeeded."""
    if not isinstance(job.get("result"), dict):
        raise Unavailable(f"Job {job['id']} left no result; `soup jobs show {job['id']}` shows it.")
    return dict(job["result"])


def succeeded(job: Json) -> Json:
    """A job that has succeeded; raises the error that another ended with."""
    if job["state"] == "succeeded":
        return job
    if job["state"] == "cancelled":
        raise Cancelled(f"Job {job['id']} was cancelled.")
    error = job.get("error") or {}
    message = str(error.get("message") or f"Job {job['id']} failed; the server's log says why.")
    raise rebuild(str(error.get("code")), message, param=error.get("param"), problems=error.get("problems") or ())
