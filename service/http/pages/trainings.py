"""The pages of trainings: all of them, and one: what is trained on what, how far it is, and the losses of what came."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

from fastapi import APIRouter, Request, Response

from plots.style import THEMES
from registry.catalogue.rows import AdapterRow, JobRow, JobState
from registry.errors import NotFound, Retired
from registry.names import parse_ref
from service.access.keys import Principal
from service.http.answers.jobs import job_shown, sees_all_of
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import Text, given
from service.http.pages.losses import Losses, losses_plots, losses_table, losses_values, of_record
from service.http.pages.page import PageRoute, shown
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.pages.tables import csv_of
from service.http.requests.paging import Cursor, Limit, page_size
from service.http.requests.waiting import job_row
from service.http.schemas.jobs import Job
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader
from service.jobs.runner import FINAL
from service.jobs.training_requests import KIND
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


class ListedTraining(Wire):
    """A training, as far as a key sees it: of one that works on namespaces beyond, only that it is there."""

    job: Job
    name: str | None
    """As which its adapter is pushed."""
    domain: str | None
    base_model: str | None
    adapter: str | None
    """What came of it."""


class TrainingList(Wire):
    """One page of trainings, newest first."""

    object: Literal["list"] = "list"
    data: list[ListedTraining]
    next_cursor: str | None


class TrainingPage(ListedTraining):
    """One training."""

    object: Literal["training"] = "training"
    asked: dict[str, Any] | None
    """The request: data by their digests, and the spec."""
    losses: Losses | None
    """Of the adapter that came of it, else of the training itself as far as it has come; null where there are none, or
    none that this key sees."""
    gone: bool
    """Whether that adapter is retired or purged: it has no page."""


@pages.get(addresses.TRAININGS + addresses.TWIN)
def trainings(
    services: AppServices, principal: Reader, state: Text = None, limit: Limit = None, cursor: Cursor = None
) -> TrainingList:
    """What the page shows."""
    size = page_size(limit, services)
    with services.registry.database.read() as catalogue:
        page = catalogue.jobs.list(principal.namespaces, kind=KIND, state=given(state), limit=size, cursor=cursor)
    return TrainingList(
        data=[ListedTraining(**_about(services, row, principal)) for row in page.rows], next_cursor=page.next_cursor
    )


@pages.get(addresses.TRAININGS)
def trainings_page(
    request: Request,
    services: AppServices,
    principal: Reader,
    state: Text = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    found = trainings(services, principal, state, limit, cursor)
    return shown(
        request,
        "trainings.html",
        found=found,
        asked={"state": state or ""},
        states=get_args(JobState),
        limit=limit,
        cursor=cursor,
    )


@pages.get(addresses.TRAINING + addresses.TWIN)
def training(id: str, services: AppServices, principal: Reader) -> TrainingPage:
    """What the page shows; raises NotFound for a job that trains nothing."""
    row = job_row(services, principal.namespaces, id)
    if row.kind != KIND:
        raise NotFound(f"There is no training {id[:80]!r}, or this key does not see it.", param="id")
    about = _about(services, row, principal)
    made = _made(services, principal, about["job"].result)
    records = [one.provenance.training for one in made.values()]
    if not made and sees_all_of(row, principal.namespaces):
        with services.registry.database.read() as catalogue:
            records = [catalogue.curves.of(row.id) or {}]
    read = map(of_record, records)
    live = {name for name, one in made.items() if one.retired_at is None}
    return TrainingPage(
        **about,
        asked=row.arguments["request"] if sees_all_of(row, principal.namespaces) else None,
        losses=next((one for one in read if one is not None), None),
        gone=about["adapter"] is not None and "adapter" not in live,
    )


@pages.get(addresses.TRAINING_CSV)
def training_csv(id: str, table: str, services: AppServices, principal: Reader) -> Response:
    """Its losses, all of them."""
    losses = training(id, services, principal).losses
    return csv_of([] if losses is None else [losses_table(losses)], table)


@pages.get(addresses.TRAINING_SVG)
def training_svg(id: str, plot: str, services: AppServices, principal: Reader, theme: ThemeQuery = "light") -> Response:
    """Its losses as a plot."""
    return svg_response(losses_plots(training(id, services, principal).losses, THEMES[theme]), plot)


@pages.get(addresses.TRAINING)
def training_page(request: Request, id: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    found = training(id, services, principal)
    return shown(
        request,
        "training.html",
        found=found,
        job=found.job,
        is_final=found.job.state in FINAL,
        place=f"/trainings/{found.job.id}",
        **losses_values(found.losses),
    )


def _about(services: Services, row: JobRow, principal: Principal) -> dict[str, Any]:
    """The fields of a listed training."""
    asked = row.arguments["request"] if sees_all_of(row, principal.namespaces) else {}
    job = job_shown(services, row, principal)
    fields = {name: asked.get(name) for name in ("name", "domain", "base_model")}
    return {"job": job, "adapter": None if job.result is None else job.result.get("adapter"), **fields}


def _made(services: Services, principal: Principal, result: Mapping[str, Any] | None) -> dict[str, AdapterRow]:
    """What a training pushed, retired or not: of AdaMix the `bank`, and the `adapter` that it was merged to."""
    told, found = result or {}, {}
    with services.registry.database.read() as catalogue:
        for name in ("bank", "adapter"):
            with suppress(NotFound, Retired):  # purged: there is nothing left to show
                if name in told:
                    found[name] = catalogue.adapters.find(principal.namespaces, parse_ref(told[name]))
    return found
