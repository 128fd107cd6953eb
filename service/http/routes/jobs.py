"""`/v1/jobs`: list, read, follow (server-sent events) and cancel work that outlives its request."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from registry.catalogue.rows import JobState
from registry.errors import Busy, NotFound, Unavailable
from service.http.answers.events import event_comment
from service.http.answers.jobs import check_reach, gains_by_base, visible_job_body
from service.http.answers.waiting import job_row, job_watch
from service.http.app_services import AppServices
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.jobs import Job, JobList
from service.http.security.auth import Reader, Writer, reauthenticated
from service.http.thread_turns import in_thread
from service.jobs.runner import FINAL, cancel
from service.services import Services

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=CheckedRoute)
KEEPALIVE_SECONDS = 5.0


@router.get("")
def list_jobs(
    services: AppServices,
    principal: Reader,
    kind: str | None = None,
    state: JobState | None = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> JobList:
    """Jobs of the namespaces this key sees, newest first."""
    size = page_size(limit, services)
    with services.registry.database.read() as catalogue:
        page = catalogue.jobs.list(principal.namespaces, kind=kind, state=state, limit=size, cursor=cursor)
    gains = gains_by_base(services, principal.namespaces)
    data = [visible_job_body(services, row, principal, gains) for row in page.rows]
    return JobList(data=data, next_cursor=page.next_cursor)


@router.get("/{id}")
def get_job(id: str, services: AppServices, principal: Reader) -> Job:
    """One job, with its progress, result or error."""
    return visible_job_body(services, job_row(services, principal.namespaces, id), principal)


@router.get("/{id}/events", response_class=StreamingResponse)
async def follow_job(id: str, request: Request, services: AppServices, principal: Reader) -> StreamingResponse:
    """Server-sent events: `progress` whenever the job changes, then `done` with the whole job.

    The stream survives an outage of the database. It ends without `done` if the key or session ends, or no longer
    sees the job.
    """
    await in_thread(job_row, services, principal.namespaces, id)

    async def events() -> AsyncIterator[str]:
        last_progress = ""
        with job_watch(services, id) as wait_for_change:
            while not await request.is_disconnected():
                try:
                    job = await _visible_job(request, services, id)
                except (Busy, Unavailable):
                    yield event_comment("the database is busy or away")
                else:
                    if job is None:
                        return
                    if job.state in FINAL:
                        yield f"event: done\ndata: {job.model_dump_json()}\n\n"
                        return
                    progress = job.progress.model_dump_json()
                    changed = progress != last_progress
                    yield f"event: progress\ndata: {progress}\n\n" if changed else event_comment("still running")
                    last_progress = progress
                if services.jobs.closed:  # the client follows the job on another server
                    return
                await wait_for_change(KEEPALIVE_SECONDS)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _visible_job(request: Request, services: Services, id: str) -> Job | None:
    """The job now; None if the key or session of the request has ended, or no longer sees it."""
    viewer = await reauthenticated(request, "read")
    if viewer is None:
        return None
    try:
        row = await in_thread(job_row, services, viewer.namespaces, id)
    except NotFound:
        return None
    return await in_thread(visible_job_body, services, row, viewer)


@router.post("/{id}/cancel")
def cancel_job(id: str, services: AppServices, principal: Writer) -> Job:
    """Cancel a queued or running job; an ended job does not change."""
    check_reach(job_row(services, principal.namespaces, id), principal.namespaces)
    return visible_job_body(services, cancel(services, principal.caller, id), principal)
