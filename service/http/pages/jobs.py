"""The pages of jobs: the list, and one job with its progress, its result, and a form to cancel it."""

from __future__ import annotations

import json
from typing import get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from plots.style import THEMES
from registry.catalogue.rows import JobState
from registry.errors import NotFound
from registry.names import COOKS
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.pages.downloads import ThemeQuery, csv_response, svg_response
from service.http.pages.forms import SMALL, State, Text, takes_form
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.pages.report import CookReport, report_context, report_drawings, report_of_soup, report_tables
from service.http.requests.parameters import Cursor, Limit
from service.http.routes.jobs import cancel_job, follow_job, get_job, list_jobs
from service.http.schemas.jobs import Job, JobList
from service.http.schemas.soups import Soup
from service.http.security.auth import Reader, Writer
from service.jobs.kinds import KINDS
from service.jobs.runner import FINAL
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
pages.add_api_route("/jobs/{id}.json", get_job)
pages.add_api_route("/jobs/{id}/events", follow_job, response_class=StreamingResponse)


@pages.get("/jobs.json")
def jobs(
    services: AppServices,
    principal: Reader,
    kind: Text = None,
    state: State = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> JobList:
    """The content of the page."""
    return list_jobs(services, principal, kind=kind, state=state, limit=limit, cursor=cursor)


@pages.get("/jobs")
def jobs_page(
    request: Request,
    services: AppServices,
    principal: Reader,
    kind: Text = None,
    state: State = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    return render_page(
        request,
        "jobs.html",
        jobs=jobs(services, principal, kind, state, limit, cursor),
        filters={"kind": kind, "state": state},
        kinds=sorted(KINDS),
        states=get_args(JobState),
        limit=limit,
        cursor=cursor,
    )


@pages.get("/jobs/{id}/{table}.csv")
def job_csv(id: str, table: str, services: AppServices, principal: Reader) -> Response:
    """A table of a cook's report as a CSV file."""
    return csv_response(report_tables(_existing_report(id, services, principal)), table)


@pages.get("/jobs/{id}/{plot}.svg")
def job_svg(id: str, plot: str, services: AppServices, principal: Reader, theme: ThemeQuery = "light") -> Response:
    """A plot of a cook's report."""
    return svg_response(report_drawings(_existing_report(id, services, principal), THEMES[theme]), plot)


@pages.get("/jobs/{id}")
def job_page(request: Request, id: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    job = get_job(id, services, principal)
    report = _report(job)
    return render_page(
        request,
        "job.html",
        job=job,
        report=report,
        is_final=job.state in FINAL,
        is_cook=job.kind in COOKS,
        page_path=f"/jobs/{job.id}",
        page_query="",
        **({} if report is None else report_context(report)),
    )


@pages.post("/jobs/{id}/cancel")
@takes_form(SMALL)
def cancel(id: str, services: AppServices, principal: Writer) -> Response:
    """Cancel the job."""
    return redirect_to(f"/jobs/{cancel_job(id, services, principal).id}")


def _existing_report(id: str, services: Services, principal: Principal) -> CookReport:
    """The report of a cook; raises NotFound if the job has none."""
    report = _report(get_job(id, services, principal))
    if report is None:
        raise NotFound("This job has no report: it did not cook, or has not ended.")
    return report


def _report(job: Job) -> CookReport | None:
    """The report of a cook; None for a job of another kind or without a result that the key sees."""
    if job.kind not in COOKS or job.result is None:
        return None
    return report_of_soup(Soup.model_validate_json(json.dumps(job.result)), job.finished_at)
