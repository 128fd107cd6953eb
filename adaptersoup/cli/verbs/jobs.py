"""`soup jobs`: the server's jobs: embedding samples, fitting selectors, cooking, training."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.output import progress_bar
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.tables import fields, spelt

app = Verbs(help="List, show, watch and cancel jobs.", no_args_is_help=True)
JobArgument = Annotated[str, typer.Argument(help="Id of the job, from `soup jobs ls`.", metavar="JOB")]


@app.command()
@verb
def ls(
    remote: Remote,
    state: Annotated[
        Literal["queued", "running", "succeeded", "failed", "cancelled"] | None,
        typer.Option(help="Only jobs in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 50,
) -> None:
    """List jobs, newest first.

    The duration counts from the start of the last attempt. The owner is the key that sent the request.

    \b
    Examples:
      soup jobs ls
      soup jobs ls --state failed --limit 5
    """
    jobs = list(remote.client.jobs(limit=limit, state=state))
    rows = [
        (
            j["id"],
            j["kind"],
            j["state"],
            _progress(j),
            _duration(j),
            _owner(j),
            str(j.get("created_at") or "")[:16].replace("T", " "),
        )
        for j in jobs
    ]
    header = ("id", "kind", "state", "progress", "duration", "owner", "created")
    remote.answer_rows(jobs, header, rows, empty="No jobs.")


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
    """Wait for a job and show its result.

    Fails if the job fails.

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
    remote.answer(
        job,
        fields(
            [
                ("id", job["id"]),
                ("kind", job["kind"]),
                ("state", job["state"]),
                ("progress", _progress(job)),
                ("attempts", job.get("attempts")),
                ("created", job.get("created_at")),
                ("started", job.get("started_at")),
                ("finished", job.get("finished_at")),
                ("duration", _duration(job)),
                ("owner", _owner(job)),
                ("error", error.get("message")),
                ("problems", error.get("problems")),
                *_result(job),
            ]
        ),
    )


def _result(job: dict[str, Any]) -> list[tuple[str, object]]:
    """The plain values of a job's result, by the names of their fields; nested ones are only in --json."""
    result = job.get("result") or {}
    return [
        (spelt(name), value)
        for name, value in result.items()
        if name != "object" and not isinstance(value, dict) and value is not False
    ]


def _duration(job: dict[str, Any]) -> str | None:
    """The time from a job's start to its end or last update; None if it is queued or has never started."""
    start, end = job.get("started_at"), job.get("finished_at") or job.get("updated_at")
    if not start or not end or job.get("state") == "queued":
        return None
    seconds = round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds(), 1)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _owner(job: dict[str, Any]) -> str | None:
    """The name of the key that requested the job, or its id if the name is not shown."""
    return job.get("owner") or job.get("created_by")


def _progress(job: dict[str, Any]) -> str:
    progress = job.get("progress") or {}
    total = progress.get("total")
    count = f"{progress.get('done', 0)}/{total}" if total else ""
    return " ".join(filter(None, (count, progress.get("message"))))
