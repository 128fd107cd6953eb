"""The pages of jobs: all of them, and one: how far it is, how to stop it, and what came of it."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from plots.style import THEMES
from registry.catalogue.jobs import COOKS
from registry.catalogue.rows import JobState
from registry.errors import NotFound
from service.access.keys import Principal
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.forms import FEW, Form, takes_form
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.pages.report import SoupReport, of_job, report_plots, report_values, tables
from service.http.pages.tables import csv_of
from service.http.requests.paging import Cursor, Limit
from service.http.routes.jobs import cancel_job, follow_job, get_job, list_jobs
from service.http.schemas.jobs import Job, JobList
from service.http.schemas.soups import Soup
from service.http.security.auth import Reader, Writer
from service.jobs.kinds import KINDS
from service.jobs.runner import FINAL
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
STATES = get_args(JobState)
Text = Annotated[str | None, Query(max_length=100)]


@pages.get(addresses.JOBS + addresses.TWIN)
def jobs(
    services: AppServices,
    principal: Reader,
    kind: Text = None,
    state: Text = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> JobList:
    """What the page shows."""
    return list_jobs(services, principal, kind=kind or None, state=state or None, limit=limit, cursor=cursor)


@pages.get(addresses.JOBS)
def jobs_page(
    request: Request,
    services: AppServices,
    principal: Reader,
    kind: Text = None,
    state: Text = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    found = jobs(services, principal, kind, state, limit, cursor)
    asked = {"kind": kind or "", "state": state or ""}
    return shown(
        request, "jobs.html", found=found, asked=asked, kinds=sorted(KINDS), states=STATES, limit=limit, cursor=cursor
    )


@pages.get(addresses.JOB + addresses.TWIN)
def job(id: str, services: AppServices, principal: Reader) -> Job:
    """What the page shows."""
    return get_job(id, services, principal)


@pages.get(addresses.JOB_EVENTS, response_class=StreamingResponse)
async def job_events(id: str, request: Request, services: AppServices, principal: Reader) -> StreamingResponse:
    """How it goes on, as it does."""
    return await follow_job(id, request, services, principal)


@pages.get(addresses.JOB_CSV)
def job_csv(id: str, table: str, services: AppServices, principal: Reader) -> Response:
    """One of the tables of what a cook gave."""
    return csv_of(tables(_existing_report(id, services, principal)), table)


@pages.get(addresses.JOB_SVG)
def job_svg(id: str, plot: str, services: AppServices, principal: Reader, theme: ThemeQuery = "light") -> Response:
    """One of the plots of what a cook gave."""
    return svg_response(report_plots(_existing_report(id, services, principal), THEMES[theme]), plot)


def _existing_report(id: str, services: Services, principal: Principal) -> SoupReport:
    """The report of a job that has cooked; raises NotFound."""
    report = report_of(get_job(id, services, principal))
    if report is None:
        raise NotFound("This job has no report: it did not cook, or has not ended.")
    return report


@pages.get(addresses.JOB)
def job_page(request: Request, id: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    found = get_job(id, services, principal)
    report = report_of(found)
    values: dict[str, Any] = {} if report is None else report_values(report)
    return shown(
        request,
        "job.html",
        job=found,
        report=report,
        is_final=found.state in FINAL,
        place=f"/jobs/{found.id}",
        which="",
        cooks=found.kind in COOKS,
        **values,
    )


@pages.post(addresses.JOB_CANCEL)
@takes_form(FEW)
def cancel(id: str, request: Request, form: Form, services: AppServices, principal: Writer) -> Response:  # noqa: ARG001
    """Cancel it."""
    return gone_to(f"/jobs/{cancel_job(id, request, services, principal).id}")


def report_of(found: Job) -> SoupReport | None:
    """The report of what a job has cooked; None where it cooks nothing, has not, or the key is not to see it."""
    if found.kind not in COOKS or found.result is None:
        return None
    return of_job(Soup.model_validate_json(json.dumps(found.result)), found.finished_at)
