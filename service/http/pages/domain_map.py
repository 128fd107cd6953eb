"""The map: the domains of a pool in two dimensions, and where a text lies among them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Request, Response

from registry.domain_map import DomainMap, domain_map
from registry.errors import InvalidSample, NotFound, SoupError
from registry.samples import prepare
from registry.spec import PoolRequest
from service.client.samples import split_texts
from service.http import problems
from service.http.app_parts import AppParts
from service.http.auth import Reader
from service.http.pages import addresses
from service.http.pages.charts import Spot, drawn_scatter
from service.http.pages.fields import Text, given
from service.http.pages.forms import SAMPLE, Form, takes_form
from service.http.pages.page import PageRoute, shown
from service.http.pages.tables import Column, Table, csv_of
from service.http.routes.selectors import embedding_place
from service.http.schemas.wire import Wire
from service.keys import Principal
from service.parts import Parts

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
DRAWN = 40
"""Domains of a chart: those with the largest posterior, or the first."""
ALIKE, SHARE = 3, 0.05
"""At most so many adapters are named that a text is most like, those with so much of its posterior."""


class MapPlace(Wire):
    """An adapter, and where the domain of its sample lies."""

    ref: str
    domain: str
    x: float
    y: float
    posterior: float | None
    """Its share of the text; null without one."""


class Map(Wire):
    """The domains of a pool in two dimensions, those with the largest posterior first, else by their labels."""

    object: Literal["map"] = "map"
    base_model: str
    selector: str
    fitted_at: datetime
    explained: float
    """The share of the variance between domains that two dimensions have."""
    places: list[MapPlace]
    text: tuple[float, float] | None
    """Where the text lies."""
    novelty: float | None
    """How far the text is from all of them: a percentile of what samples of their own come to."""
    reason: str | None
    """What the selector says of it."""


@pages.get(addresses.MAP + addresses.TWIN)
def whole_map(parts: AppParts, who: Reader, base_model: Text = None) -> Map:
    """What the page shows."""
    return _map(parts, who, given(base_model), None, "")


@pages.get(addresses.MAP_CSV)
def map_csv(table: str, parts: AppParts, who: Reader, base_model: Text = None) -> Response:
    """Its table."""
    return csv_of([places(whole_map(parts, who, base_model))], table)


@pages.get(addresses.MAP)
def map_page(request: Request, parts: AppParts, who: Reader, base_model: Text = None) -> Response:
    """The page."""
    try:
        return _page(request, parts, whole_map(parts, who, base_model), base_model=given(base_model))
    except NotFound as error:
        return _page(request, parts, None, base_model=given(base_model), problem=error)


@pages.post(addresses.MAP)
@takes_form(SAMPLE)
def place(request: Request, form: Form, parts: AppParts, who: Reader) -> Response:
    """The page with a text on it."""
    base_model = given(form.get("base_model"))
    try:
        if given(form.get("text")) is None:
            raise InvalidSample("Paste some text, or drop a file of it.", param="text")
        found = _map(parts, who, base_model, form["text"].strip(), request.state.request_id)
    except SoupError as error:
        return _page(request, parts, None, base_model=base_model, text=form.get("text"), problem=error)
    if form.get("as") == "csv":
        return csv_of([places(found)], "places")
    return _page(request, parts, found, base_model=base_model, text=form["text"])


def _map(parts: Parts, who: Principal, base_model: str | None, text: str | None, request_id: str) -> Map:
    """The map of what a key sees, and a text on it; raises NotFound where nothing was fitted yet."""
    pool = PoolRequest(base_model=base_model or _first(parts))
    caller = who.caller(request_id)
    if text is None:
        return _told(pool, domain_map(parts.registry, caller, pool))
    base = parts.registry.bases[pool.base_model or ""]
    limits = replace(parts.registry.limits.sample, novel=1)
    sample = prepare(split_texts(text, what="The text"), limits, bos=base.bos, novel=True)
    with embedding_place(parts):
        return _told(pool, domain_map(parts.registry, caller, pool, sample))


def _first(parts: Parts) -> str:
    """The base model that is meant where none is named."""
    return next(iter(sorted(parts.bases)), "")


def _told(pool: PoolRequest, found: DomainMap) -> Map:
    chosen = found.chosen
    return Map(
        base_model=pool.base_model or "", selector=found.selector.id, fitted_at=found.selector.fitted_at,
        explained=found.explained, text=found.sample, novelty=None if chosen is None else chosen.selection.novelty,
        reason=None if chosen is None else chosen.selection.reason,
        places=[
            MapPlace(ref=one.member.ref, domain=one.member.domain, x=one.x, y=one.y, posterior=one.posterior)
            for one in found.places
        ],
    )  # fmt: skip


def places(found: Map) -> Table:
    """Every adapter and its coordinates, numbered as on the chart."""
    columns = (
        Column("Number", "number"), Column("Adapter", "model"), Column("Domain"), Column("Posterior", "share"),
        Column("First direction", "difference"), Column("Second direction", "difference"),
    )  # fmt: skip
    rows = tuple(
        (number, one.ref, one.domain, one.posterior, one.x, one.y) for number, one in enumerate(found.places, 1)
    )
    return Table("places", "Where domains lie", columns, rows)


def _page(
    request: Request, parts: Parts, found: Map | None, *, base_model: str | None, text: str | None = None,
    problem: SoupError | None = None,
) -> Response:  # fmt: skip
    spots: list[Spot] = []
    if found is not None:
        mine = [] if found.text is None else [Spot("your text", *found.text, mine=True)]
        spots = [*mine, *(Spot(one.domain, one.x, one.y) for one in found.places[:DRAWN])]
    missing = isinstance(problem, NotFound) and text is None
    alike = [] if found is None else [one for one in found.places[:ALIKE] if (one.posterior or 0) >= SHARE]
    given_before = {} if text is None else {"text": text}
    return shown(
        request, "map.html", status=200 if problem is None or missing else problems.status_of(problem), found=found,
        charts=drawn_scatter(spots), table=None if found is None else places(found), drawn=DRAWN, problem=problem,
        alike=alike or ([] if found is None else found.places[:1]),
        bases=sorted(parts.bases), base_model=base_model, given=given_before,
    )  # fmt: skip
