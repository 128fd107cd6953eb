"""The page of the engine: what it holds and does at the moment, and how long it takes for each adapter.

Of the whole server, so it takes what `/metrics` takes: a key with scope `admin` that sees all namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request, Response

from registry.errors import Forbidden, NotFound, Retired
from registry.names import DigestRef
from service.access.keys import Principal
from service.engine.adapter_metrics import BASE, OTHER, AdapterTotals
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.page import PageRoute, shown
from service.http.pages.tables import Cell, Column, Table, csv_of
from service.http.schemas.wire import Wire
from service.http.security.auth import Admin
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
NAMED = {BASE: "base models alone", OTHER: "all others together"}


class AdapterTimes(Wire):
    """What the requests of an adapter took since the server began."""

    model: str
    """Its newest ref; or its digest, where it is gone."""
    generated_tokens: int
    scored_tokens: int
    answers: int
    first_token_seconds: float | None
    """On average; null where none was generated, as below."""
    answer_seconds: float | None


class EngineState(Wire):
    """What the engine holds and does."""

    object: Literal["engine"] = "engine"
    bases: list[str]
    """Those in memory."""
    counters: dict[str, float]
    """As `/metrics` has them, after `soup_engine_`."""
    adapters: list[AdapterTimes]
    """Those with the most tokens first."""


@pages.get(addresses.ENGINE + addresses.TWIN)
def engine(services: AppServices, principal: Admin) -> EngineState:
    """What the page shows; raises Forbidden for keys that do not see the whole server."""
    if principal.namespaces is not None:
        raise Forbidden("The engine is of the whole server: this takes a key with all namespaces.")
    figures = {
        label: one
        for label, one in services.engine.by_adapter().items()
        if one.answers or one.generated_tokens or one.scored_tokens
    }
    names = NAMED | _names(services, principal, [label for label in figures if label not in NAMED])
    found = [_times(names[label], one) for label, one in figures.items()]
    found.sort(key=lambda one: (-one.generated_tokens - one.scored_tokens, one.model))
    return EngineState(bases=list(services.engine.bases_held()), counters=services.engine.counters(), adapters=found)


@pages.get(addresses.ENGINE_CSV)
def engine_csv(table: str, services: AppServices, principal: Admin) -> Response:
    """Its table."""
    return csv_of([adapters(engine(services, principal))], table)


@pages.get(addresses.ENGINE)
def engine_page(request: Request, services: AppServices, principal: Admin) -> Response:
    """The page."""
    found = engine(services, principal)
    asked = found.counters["adapter_hits_total"] + found.counters["adapter_loads_total"]
    there = found.counters["adapter_hits_total"] / asked if asked else None
    return shown(request, "engine.html", found=found, table=adapters(found), there=there)


def adapters(found: EngineState) -> Table:
    """How long adapters take."""
    columns = (
        Column("Model", "model"),
        Column("Tokens written", "number"),
        Column("Tokens scored", "number"),
        Column("Answers", "number"),
        Column("Seconds to the first token", "number"),
        Column("Seconds an answer", "number"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (one.model, one.generated_tokens, one.scored_tokens, one.answers, one.first_token_seconds, one.answer_seconds)
        for one in found.adapters
    )
    return Table("adapters", "Models by their tokens, since the server began", columns, rows)


def _times(model: str, found: AdapterTotals) -> AdapterTimes:
    return AdapterTimes(
        model=model,
        generated_tokens=found.generated_tokens,
        scored_tokens=found.scored_tokens,
        answers=found.answers,
        first_token_seconds=found.first_token_seconds / found.first_tokens if found.first_tokens else None,
        answer_seconds=found.seconds / found.answers if found.answers else None,
    )


def _names(services: Services, principal: Principal, digests: Sequence[str]) -> dict[str, str]:
    """The newest ref of each digest; the digest, where it has none any more."""
    found = {}
    with services.registry.database.read() as catalogue:
        for digest in digests:
            try:
                found[digest] = catalogue.adapters.find(principal.namespaces, DigestRef(digest)).ref
            except (NotFound, Retired):
                found[digest] = digest
    return found
