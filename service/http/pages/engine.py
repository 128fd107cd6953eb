"""The page of the engine: what it has in memory, its counters, and the time that it takes for each model.

It shows the whole server, so it requires what `/metrics` requires: a key with scope `admin` for all namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request, Response

from registry.errors import Forbidden, NotFound, Retired
from registry.names import DigestRef
from service.access.keys import Principal
from service.engine.adapter_metrics import BASE, OTHER, AdapterTotals
from service.http.app_services import AppServices
from service.http.pages.downloads import Column, Table, csv_response
from service.http.pages.page import PageRoute, render_page
from service.http.schemas.wire import Wire
from service.http.security.auth import Admin
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
GROUPS = {BASE: "base models alone", OTHER: "all others together"}


class AdapterTimes(Wire):
    """The tokens and the times of a model since the server started."""

    model: str
    """The newest ref of the adapter, or its digest if it was removed."""
    generated_tokens: int
    scored_tokens: int
    answers: int
    first_token_seconds: float | None
    """Mean; null if nothing was generated, like the next field."""
    answer_seconds: float | None


class EngineState(Wire):
    """The state of the engine."""

    object: Literal["engine"] = "engine"
    bases: list[str]
    """Base models in memory."""
    counters: dict[str, float]
    """The counters of `/metrics`, without their prefix `soup_engine_`."""
    adapters: list[AdapterTimes]
    """Times of the adapters, most tokens first."""


@pages.get("/engine.json")
def engine(services: AppServices, principal: Admin) -> EngineState:
    """The content of the page; raises Forbidden for keys that do not see the whole server."""
    if principal.namespaces is not None:
        raise Forbidden("The page of the engine needs a key with all namespaces.")
    totals_by_label = {
        label: totals
        for label, totals in services.engine.adapter_metrics.totals().items()
        if totals.answers or totals.generated_tokens or totals.scored_tokens
    }
    names = GROUPS | _newest_refs(services, principal, [label for label in totals_by_label if label not in GROUPS])
    times = [_adapter_times(names[label], totals) for label, totals in totals_by_label.items()]
    times.sort(key=lambda row: (-row.generated_tokens - row.scored_tokens, row.model))
    return EngineState(bases=list(services.engine.loaded_bases()), counters=services.engine.counters(), adapters=times)


@pages.get("/engine/{table}.csv")
def engine_csv(table: str, services: AppServices, principal: Admin) -> Response:
    """The table of models as a CSV file."""
    return csv_response([times_table(engine(services, principal))], table)


@pages.get("/engine")
def engine_page(request: Request, services: AppServices, principal: Admin) -> Response:
    """The page."""
    state = engine(services, principal)
    hits, loads = state.counters["adapter_hits_total"], state.counters["adapter_loads_total"]
    hit_rate = hits / (hits + loads) if hits + loads else None
    return render_page(request, "engine.html", state=state, table=times_table(state), hit_rate=hit_rate)


def times_table(state: EngineState) -> Table:
    """The tokens and the times of each model."""
    columns = (
        Column("Model", "model"),
        Column("Tokens written", "number"),
        Column("Tokens scored", "number"),
        Column("Answers", "number"),
        Column("Seconds to the first token", "number"),
        Column("Seconds per answer", "number"),
    )
    rows = tuple(
        (
            times.model,
            times.generated_tokens,
            times.scored_tokens,
            times.answers,
            times.first_token_seconds,
            times.answer_seconds,
        )
        for times in state.adapters
    )
    return Table("adapters", "Models by their tokens since the server started", columns, rows)


def _adapter_times(model: str, totals: AdapterTotals) -> AdapterTimes:
    return AdapterTimes(
        model=model,
        generated_tokens=totals.generated_tokens,
        scored_tokens=totals.scored_tokens,
        answers=totals.answers,
        first_token_seconds=totals.first_token_seconds / totals.first_tokens if totals.first_tokens else None,
        answer_seconds=totals.seconds / totals.answers if totals.answers else None,
    )


def _newest_refs(services: Services, principal: Principal, digests: Sequence[str]) -> dict[str, str]:
    """The newest ref of each digest; the digest itself if the adapter was removed."""
    refs = {}
    with services.registry.database.read() as catalogue:
        for digest in digests:
            try:
                refs[digest] = catalogue.adapters.find(principal.namespaces, DigestRef(digest)).ref
            except (NotFound, Retired):
                refs[digest] = digest
    return refs
