"""The map: the domains of a pool in two dimensions, and where a text lies among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Literal

from fastapi import APIRouter, Request, Response

from plots.charts import domain_map as domain_plot
from plots.style import THEMES
from registry.catalogue.rows import SelectorRow
from registry.errors import InvalidSample, NotFound, SoupError
from registry.samples.sample import prepare
from registry.samples.texts import split_texts
from registry.select.domain_map import DomainMap, base_of, domain_map
from registry.spec import PoolSpec
from service.access.keys import Principal
from service.http.app_parts import AppServices
from service.http.models.embedding_places import embedding_place
from service.http.pages import addresses
from service.http.pages.fields import Text, given
from service.http.pages.forms import SAMPLE, Form, takes_form
from service.http.pages.page import PageRoute, shown
from service.http.pages.plot_files import PlotNumber, ThemeQuery, svg_response
from service.http.pages.tables import Column, Table, csv_of
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
TABLED = 49
"""Domains of the table on the page: those with the largest posterior, or the first ones; the CSV has all."""
MAX_POINTS = 2_000
"""Domains of the plot."""
NEVER = "No posterior selector that this key sees was fitted yet: cook a soup, or ask for a selection, and look again."
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


class FittedMap(Wire):
    """A fitted selector that has a map."""

    id: str
    fitted_at: datetime
    domains: int
    namespaces: list[str] | None
    """Of its pool; null for all."""


class Map(Wire):
    """The domains of a pool in two dimensions, those with the largest posterior first, else by their labels."""

    object: Literal["map"] = "map"
    selector: FittedMap
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
def whole_map(services: AppServices, principal: Reader, selector: Text = None) -> Map:
    """What the page shows; raises NotFound where nothing was fitted yet."""
    return _map(services, principal, given(selector), _fitted(services, principal))


@pages.get(addresses.MAP_CSV)
def map_csv(table: str, services: AppServices, principal: Reader, selector: Text = None) -> Response:
    """Its table, whole."""
    return csv_of([places(whole_map(services, principal, selector))], table)


@pages.get(addresses.MAP_SVG)
def map_svg(
    services: AppServices,
    principal: Reader,
    selector: Text = None,
    x: PlotNumber | None = None,
    y: PlotNumber | None = None,
    theme: ThemeQuery = "light",
) -> Response:
    """The map, and where a text lies on it: the page computed that, and nothing of a text is stored."""
    places = whole_map(services, principal, selector).places
    text = None if x is None or y is None else (x, y)
    if text is not None:  # the domains around it are drawn first, and have their names where there is room
        places = sorted(places, key=lambda place: math.dist((place.x, place.y), text))
    points = {place.domain: (place.x, place.y) for place in places[:MAX_POINTS]}
    return svg_response({"plot": partial(domain_plot, points, text, theme=THEMES[theme])} if points else {})


@pages.get(addresses.MAP)
def map_page(request: Request, services: AppServices, principal: Reader, selector: Text = None) -> Response:
    """The page; where nothing was fitted yet, or a selector cannot be read, it says so."""
    fitted, id = _fitted(services, principal), given(selector)
    if id is None and not fitted:
        return _page(request, fitted, None)
    try:
        return _page(request, fitted, _map(services, principal, id, fitted))
    except SoupError as error:
        return _page(request, fitted, None, error=error)


@pages.post(addresses.MAP)
@takes_form(SAMPLE)
def place(request: Request, form: Form, services: AppServices, principal: Reader) -> Response:
    """The page with a text on it."""
    fitted, id, text = _fitted(services, principal), given(form.get("selector")), form.get("text", "")
    found: Map | None = None
    try:
        found = _map(services, principal, id, fitted)
        if not text.strip():
            raise InvalidSample("Paste some text, or drop a file of it.", param="text")
        found = _map(services, principal, id, fitted, text.strip())
    except SoupError as error:
        return _page(request, fitted, found, text=text, error=error)
    if form.get("as") == "csv":
        return csv_of([places(found)], "places")
    return _page(request, fitted, found, text=text)


def _fitted(services: Services, principal: Principal) -> list[FittedMap]:
    """The posterior selectors that serve the pools which a key sees, newest first."""
    with services.registry.database.read() as catalogue:
        rows = catalogue.selectors.serving(principal.namespaces, "posterior")
    return [_about(row.id, row.fitted_at, row.domains, row.pool) for row in rows]


def _map(
    services: Services, principal: Principal, id: str | None, fitted: Sequence[FittedMap], text: str | None = None
) -> Map:
    """The map of a selector, the newest where none is named, and a text on it; raises NotFound."""
    if id is None and not fitted:
        raise NotFound(NEVER)
    with services.registry.database.read() as catalogue:
        row = catalogue.selectors.get(principal.namespaces, id or fitted[0].id)
    if text is None:
        return _told(row, domain_map(services.registry, row))
    bos = base_of(services.registry, row).bos
    sample = prepare(
        split_texts(text, what="The text"), services.registry.limits.sample.of_any_number, bos=bos, novel=True
    )
    with embedding_place(services):
        return _told(row, domain_map(services.registry, row, sample))


def _about(id: str, fitted_at: datetime, domains: int, pool: PoolSpec) -> FittedMap:
    names = pool.namespaces
    return FittedMap(id=id, fitted_at=fitted_at, domains=domains, namespaces=None if names is None else list(names))


def _told(row: SelectorRow, found: DomainMap) -> Map:
    said = found.selection
    return Map(
        selector=_about(row.id, row.fitted_at, len(row.members), row.pool),
        explained=found.explained,
        text=found.sample,
        novelty=None if said is None else said.novelty,
        reason=None if said is None else said.reason,
        places=[
            MapPlace(ref=one.member.ref, domain=one.member.domain, x=one.x, y=one.y, posterior=one.posterior)
            for one in found.places
        ],
    )


def places(found: Map) -> Table:
    """Every adapter and its coordinates, numbered as on the chart."""
    columns = (
        Column("Number", "number"),
        Column("Adapter", "model"),
        Column("Domain"),
        Column("Posterior", "share"),
        Column("First direction", "difference"),
        Column("Second direction", "difference"),
    )
    rows = tuple(
        (number, one.ref, one.domain, one.posterior, one.x, one.y) for number, one in enumerate(found.places, 1)
    )
    return Table("places", "Where domains lie", columns, rows)


def _page(
    request: Request, fitted: Sequence[FittedMap], found: Map | None, *, text: str = "", error: SoupError | None = None
) -> Response:
    """The page; `found` is None where nothing was fitted yet, or could not be read."""
    alike: list[MapPlace] = []
    table = None
    if found is not None:
        alike = [one for one in found.places[:ALIKE] if (one.posterior or 0) >= SHARE] or found.places[:1]
        table = places(found.model_copy(update={"places": found.places[:TABLED]}))
    return shown(
        request,
        "map.html",
        error=error,
        found=found,
        table=table,
        most=MAX_POINTS,
        alike=alike,
        fitted=fitted,
        never=NEVER,
        text=text,
    )
