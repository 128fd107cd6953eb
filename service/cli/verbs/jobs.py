"""`soup jobs`: what the server is doing: embedding samples, fitting selectors, cooking."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from service.cli.output import columns, fields, progress_bar
from service.cli.remote import Remote, verb

app = typer.Typer(
    help="List, show, watch and cancel jobs.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)
JobArgument = Annotated[str, typer.Argument(help="Id as `soup jobs ls` shows it.", metavar="JOB")]


@app.command()
@verb
def ls(
    remote: Remote,
    state: Annotated[
        Literal["queued", "running", "succeeded", "failed", "cancelled"] | None,
        typer.Option(help="Only in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
) -> None:
    """List jobs, newest first.

    \b
    Examples:
      soup jobs ls
      soup jobs ls --state failed --limit 5
    """
    jobs = list(remote.client.jobs(limit=limit, state=state))
    rows = [
        (j["id"], j["kind"], j["state"], _progress(j), str(j.get("created_at") or "")[:16].replace("T", " "))
        for j in jobs
    ]
    table = [columns(("id", "kind", "state", "progress", "created"), rows)] if jobs else []
    remote.answer({"object": "list", "data": jobs}, *table, said="" if jobs else "No jobs.")


@app.command()
@verb
def show(remote: Remote, job: JobArgument) -> None:
    """Show one job.

    \b
    Examples:
      soup jobs show job-4f1d0c9a2b7e6835
    """
    _print(remote, remote.client.job(job))


@app.command()
@verb
def watch(remote: Remote, job: JobArgument) -> None:
    """Wait for a job and show how it ended; fails as the job does.

    \b
    Examples:
      soup jobs watch job-4f1d0c9a2b7e6835
    """
    with progress_bar(f"job {job}") as report:
        done = remote.client.wait_job(job, progress=report)
    _print(remote, done)


@app.command()
@verb
def cancel(remote: Remote, job: JobArgument) -> None:
    """Ask a job to stop.

    \b
    Examples:
      soup jobs cancel job-4f1d0c9a2b7e6835
    """
    _print(remote, remote.client.cancel_job(job))


def _print(remote: Remote, job: dict[str, Any]) -> None:
    error = job.get("error") or {}
    remote.answer(job, fields([
        ("id", job["id"]),
        ("kind", job["kind"]),
        ("state", job["state"]),
        ("progress", _progress(job)),
        ("attempts", job.get("attempts")),
        ("created", job.get("created_at")),
        ("updated", job.get("updated_at")),
        ("error", error.get("message")),
        ("problems", error.get("problems")),
        ("result", job.get("result")),
    ]))  # fmt: skip


def _progress(job: dict[str, Any]) -> str:
    progress = job.get("progress") or {}
    total = progress.get("total")
    counted = f"{progress.get('done', 0)}/{total}" if total else ""
    return " ".join(part for part in (counted, progress.get("message") or "") if part)
