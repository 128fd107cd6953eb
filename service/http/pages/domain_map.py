"""The map: the domains of a pool in two dimensions, and the position of a text among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Literal

from fastapi import APIRouter, Request, Response

from plots.charts import domain_map as draw_domain_map
from plots.style import THEMES
from registry.catalogue.rows import SelectorRow
from registry.errors import InvalidSample, NotFound, SoupError
from registry.samples.sample import clean_sample
from registry.samples.texts import split_texts
from registry.select.domain_map import DomainMap, base_of, domain_map
from registry.spec import PoolSpec
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.models.inference_limits import limit_embeddings
from service.http.pages.downloads import Column, PlotNumber, Table, ThemeQuery, csv_response, svg_response
from service.http.pages.forms import SAMPLE, Form, Text, takes_form, text_or_none
from service.http.pages.page import PageRoute, render_page
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_ROWS = 49
"""Domains of the table on the page, the most similar to the text or the first ones; the CSV file has all."""
MAX_POINTS = 2_000
"""Domains of the plot."""
NOTHING_FITTED = "No posterior selector that this key sees is fitted yet: cook a soup, or request a selection."
MAX_SIMILAR, MIN_POSTERIOR = 3, 0.05
"""The most adapters that the page names as similar to a text, and the least posterior of such an adapter."""


class MapPlace(Wire):
    """An adapter and the position of its domain."""

    ref: str
    domain: str
    x: float
    y: float
    posterior: float | None
    """The adapter's posterior for the text; null without a text."""


class FittedMap(Wire):
    """A fitted selector that has a map."""

    id: str
    fitted_at: datetime
    domains: int
    namespaces: list[str] | None
    """The namespaces of its pool; null for all."""


class Map(Wire):
    """The domains of a pool in two dimensions, by descending posterior for the text, else by their labels."""

    object: Literal["map"] = "map"
    selector: FittedMap
    explained: float
    """The share of the variance between domains in these two dimensions."""
    places: list[MapPlace]
    text: tuple[float, float] | None
    """The position of the text."""
    novelty: float | None
    """The distance of the text from all domains, as a percentile of the distances of their own samples."""
    reason: str | None
    """The selector's reason for its decision about the text."""


@pages.get("/map.json")
def whole_map(services: AppServices, principal: Reader, selector: Text = None) -> Map:
    """The content of the page; raises NotFound if no selector is fitted."""
    return _load_map(services, principal, selector, _fitted_maps(services, principal))


@pages.get("/map/{table}.csv")
def map_csv(table: str, services: AppServices, principal: Reader, selector: Text = None) -> Response:
    """The table of all domains as a CSV file."""
    return csv_response([places_table(whole_map(services, principal, selector))], table)


@pages.get("/map/plot.svg")
def map_svg(
    services: AppServices,
    principal: Reader,
    selector: Text = None,
    x: PlotNumber | None = None,
    y: PlotNumber | None = None,
    theme: ThemeQuery = "light",
) -> Response:
    """The plot, with a text at (x, y), which come with the query because no text is stored."""
    places = whole_map(services, principal, selector).places
    text = None if x is None or y is None else (x, y)
    if text is not None:  # the nearest domains come first, so that their names find room
        places = sorted(places, key=lambda place: math.dist((place.x, place.y), text))
    points = {place.domain: (place.x, place.y) for place in places[:MAX_POINTS]}
    return svg_response({"plot": partial(draw_domain_map, points, text, theme=THEMES[theme])} if points else {})


@pages.get("/map")
def map_page(request: Request, services: AppServices, principal: Reader, selector: Text = None) -> Response:
    """The page, with an explanation if no selector is fitted or the selector cannot be read."""
    fitted = _fitted_maps(services, principal)
    if selector is None and not fitted:
        return _page(request, fitted, None)
    try:
        return _page(request, fitted, _load_map(services, principal, selector, fitted))
    except SoupError as error:
        return _page(request, fitted, None, error=error)


@pages.post("/map")
@takes_form(SAMPLE)
def place_text(request: Request, form: Form, services: AppServices, principal: Reader) -> Response:
    """The page with a text on the map."""
    fitted, id = _fitted_maps(services, principal), text_or_none(form.get("selector"))
    text = form.get("text", "")
    map: Map | None = None
    try:
        if not text.strip():
            raise InvalidSample("Paste some text, or drop a file of it.", param="text")
        map = _load_map(services, principal, id, fitted, text.strip())
    except SoupError as error:
        with suppress(SoupError):
            map = _load_map(services, principal, id, fitted)
        return _page(request, fitted, map, text=text, error=error)
    if form.get("as") == "csv":
        return csv_response([places_table(map)], "places")
    return _page(request, fitted, map, text=text)


def _fitted_maps(services: Services, principal: Principal) -> list[FittedMap]:
    """The posterior selectors in use for the pools that a key sees, newest first."""
    with services.registry.database.read() as catalogue:
        rows = catalogue.selectors.serving(principal.namespaces, "posterior")
    return [_fitted_map(row.id, row.fitted_at, row.domains, row.pool) for row in rows]


def _load_map(
    services: Services, principal: Principal, id: str | None, fitted: Sequence[FittedMap], text: str | None = None
) -> Map:
    """The map of the selector `id`, else of the newest one, with a text on it; raises NotFound, InvalidSample."""
    if id is None and not fitted:
        raise NotFound(NOTHING_FITTED)
    with services.registry.database.read() as catalogue:
        row = catalogue.selectors.get(principal.namespaces, id or fitted[0].id)
    if text is None:
        return _map_body(row, domain_map(services.registry, row))
    bos = base_of(services.registry, row).bos
    limits = services.registry.limits.sample.with_single_sequence
    sample = clean_sample(split_texts(text, label="The text"), limits, bos=bos, novel=True)
    with limit_embeddings(services):
        return _map_body(row, domain_map(services.registry, row, sample))


def _fitted_map(id: str, fitted_at: datetime, domains: int, pool: PoolSpec) -> FittedMap:
    namespaces = None if pool.namespaces is None else list(pool.namespaces)
    return FittedMap(id=id, fitted_at=fitted_at, domains=domains, namespaces=namespaces)


def _map_body(row: SelectorRow, domains: DomainMap) -> Map:
    selection = domains.selection
    return Map(
        selector=_fitted_map(row.id, row.fitted_at, len(row.members), row.pool),
        explained=domains.explained,
        text=domains.sample,
        novelty=None if selection is None else selection.novelty,
        reason=None if selection is None else selection.reason,
        places=[
            MapPlace(ref=place.member.ref, domain=place.member.domain, x=place.x, y=place.y, posterior=place.posterior)
            for place in domains.places
        ],
    )


def places_table(map: Map) -> Table:
    """The adapters with their coordinates, numbered as on the plot."""
    columns = (
        Column("Number", "number"),
        Column("Adapter", "model"),
        Column("Domain"),
        Column("Posterior", "share"),
        Column("First direction", "difference"),
        Column("Second direction", "difference"),
    )
    rows = tuple(
        (number, place.ref, place.domain, place.posterior, place.x, place.y)
        for number, place in enumerate(map.places, 1)
    )
    return Table("places", "Positions of the domains", columns, rows)


def _page(
    request: Request, fitted: Sequence[FittedMap], map: Map | None, *, text: str = "", error: SoupError | None = None
) -> Response:
    """The page; `map` is None if no selector is fitted or it cannot be read."""
    similar: list[MapPlace] = []
    table = None
    if map is not None:
        similar = [place for place in map.places[:MAX_SIMILAR] if (place.posterior or 0) >= MIN_POSTERIOR]
        similar = similar or map.places[:1]
        table = places_table(map.model_copy(update={"places": map.places[:MAX_ROWS]}))
    return render_page(
        request,
        "map.html",
        error=error,
        map=map,
        table=table,
        max_points=MAX_POINTS,
        similar=similar,
        fitted=fitted,
        nothing_fitted=NOTHING_FITTED,
        text=text,
    )
