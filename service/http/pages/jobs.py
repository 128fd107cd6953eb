"""The pages of jobs and trainings: their lists, and each with its progress and its result.

A training's progress and its cancel button are those of its job (`running.html`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator, Field

from plots.style import THEMES
from registry.catalogue.rows import AdapterRow, JobRow, JobState
from registry.errors import NotFound, Retired
from registry.names import COOKS, parse_ref
from service.access.keys import Principal
from service.http.answers.jobs import sees_all_of, visible_job_body
from service.http.answers.waiting import job_row
from service.http.app_services import AppServices
from service.http.pages.downloads import ThemeQuery, csv_response, svg_response
from service.http.pages.forms import SMALL, Text, takes_form, text_or_none
from service.http.pages.losses import Losses, losses_context, losses_drawings, losses_table, training_losses
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.pages.report import CookReport, report_context, report_drawings, report_of_soup, report_tables
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.routes.jobs import cancel_job, follow_job, get_job, list_jobs
from service.http.schemas.jobs import Job, JobList
from service.http.schemas.soups import Soup
from service.http.schemas.wire import Page, Wire
from service.http.security.auth import Reader, Writer
from service.jobs.kinds import KINDS
from service.jobs.runner import FINAL
from service.jobs.training_requests import KIND as TRAINING
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
pages.add_api_route("/jobs/{id}.json", get_job)
pages.add_api_route("/jobs/{id}/events", follow_job, response_class=StreamingResponse)
State = Annotated[JobState | None, BeforeValidator(text_or_none)]


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


# --- trainings ----------------------------------------------------------------------------------------


class ListedTraining(Wire):
    """A training; all but its job is null if it involves namespaces that the key does not see."""

    job: Job
    name: str | None
    """The name under which its adapter is pushed."""
    domain: str | None
    base_model: str | None
    adapter: str | None
    """The ref of the trained adapter."""


class TrainingList(Page[ListedTraining]):
    """Trainings, newest first."""


class TrainingPage(ListedTraining):
    """The content of the page of one training."""

    object: Literal["training"] = "training"
    request: dict[str, Any] | None = Field(serialization_alias="asked")
    """The request: data by their digests, and the spec."""
    losses: Losses | None
    """The losses in the adapter's record, else those of the training so far; null if this key sees none."""
    gone: bool
    """True if the adapter is retired or purged, so that it has no page."""


@pages.get("/trainings.json")
def trainings(
    services: AppServices, principal: Reader, state: State = None, limit: Limit = None, cursor: Cursor = None
) -> TrainingList:
    """The content of the page."""
    with services.registry.database.read() as catalogue:
        page = catalogue.jobs.list(
            principal.namespaces, kind=TRAINING, state=state, limit=page_size(limit, services), cursor=cursor
        )
    rows = [ListedTraining(**_training_fields(services, row, principal)) for row in page.rows]
    return TrainingList(data=rows, next_cursor=page.next_cursor)


@pages.get("/trainings")
def trainings_page(
    request: Request,
    services: AppServices,
    principal: Reader,
    state: State = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    return render_page(
        request,
        "trainings.html",
        trainings=trainings(services, principal, state, limit, cursor),
        filters={"state": state},
        states=get_args(JobState),
        limit=limit,
        cursor=cursor,
    )


@pages.get("/trainings/{id}.json")
def training(id: str, services: AppServices, principal: Reader) -> TrainingPage:
    """The content of the page; raises NotFound for a job of another kind."""
    row = job_row(services, principal.namespaces, id)
    if row.kind != TRAINING:
        raise NotFound(f"There is no training {id[:80]!r}, or this key does not see it.", param="id")
    sees_all = sees_all_of(row, principal.namespaces)
    fields = _training_fields(services, row, principal)
    adapters = _pushed_adapters(services, principal, fields["job"].result)
    records: list[Mapping[str, Any]] = [adapter.provenance.training for adapter in adapters.values()]
    if not adapters and sees_all:
        with services.registry.database.read() as catalogue:
            records = [catalogue.curves.get(row.id) or {}]
    losses = list(filter(None, map(training_losses, records)))
    live = {name for name, adapter in adapters.items() if adapter.retired_at is None}
    return TrainingPage(
        **fields,
        request=row.arguments["request"] if sees_all else None,
        losses=losses[0] if losses else None,
        gone=fields["adapter"] is not None and "adapter" not in live,
    )


@pages.get("/trainings/{id}/{table}.csv")
def training_csv(id: str, table: str, services: AppServices, principal: Reader) -> Response:
    """The table of all losses as a CSV file."""
    losses = training(id, services, principal).losses
    return csv_response([] if losses is None else [losses_table(losses)], table)


@pages.get("/trainings/{id}/{plot}.svg")
def training_svg(id: str, plot: str, services: AppServices, principal: Reader, theme: ThemeQuery = "light") -> Response:
    """The plot of the losses."""
    return svg_response(losses_drawings(training(id, services, principal).losses, THEMES[theme]), plot)


@pages.get("/trainings/{id}")
def training_page(request: Request, id: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    page = training(id, services, principal)
    return render_page(
        request,
        "training.html",
        training=page,
        job=page.job,
        is_final=page.job.state in FINAL,
        page_path=f"/trainings/{page.job.id}",
        **losses_context(page.losses),
    )


def _training_fields(services: Services, row: JobRow, principal: Principal) -> dict[str, Any]:
    """The fields of a listed training."""
    request = row.arguments["request"] if sees_all_of(row, principal.namespaces) else {}
    job = visible_job_body(services, row, principal)
    return {
        "job": job,
        "name": request.get("name"),
        "domain": request.get("domain"),
        "base_model": request.get("base_model"),
        "adapter": None if job.result is None else job.result.get("adapter"),
    }


def _pushed_adapters(
    services: Services, principal: Principal, result: Mapping[str, Any] | None
) -> dict[str, AdapterRow]:
    """The adapters that a training pushed and that are not purged: the `bank` of AdaMix, and the `adapter`."""
    adapters = {}
    with services.registry.database.read() as catalogue:
        for name in ("bank", "adapter"):
            ref = (result or {}).get(name)
            if ref is not None:
                with suppress(NotFound, Retired):
                    adapters[name] = catalogue.adapters.find(principal.namespaces, parse_ref(ref))
    return adapters
