"""The page that says why a soup is as it is: its report, of the newest evidence or of any before."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from plots.style import THEMES
from registry.catalogue.rows import AdapterRow
from registry.errors import NotFound
from registry.spec import Evidence
from service.access.keys import Principal
from service.http.answers.lineage import lineage_of
from service.http.app_parts import AppServices
from service.http.models.named_models import adapter_named
from service.http.pages import addresses
from service.http.pages.page import PageRoute, shown
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.pages.report import SoupReport, named, report_plots, report_values, tables
from service.http.pages.tables import csv_of
from service.http.security.auth import Reader
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
Which = Annotated[int | None, Query(ge=1, description="Of several, which evidence: 1 is the oldest.")]


@pages.get(addresses.SOUP_CSV)
def soup_csv(
    ns: str, name: str, table: str, services: AppServices, principal: Reader, evidence: Which = None
) -> Response:
    """One of its tables."""
    return csv_of(tables(_report(services, principal, _soup(services, principal, ns, name), evidence)[0]), table)


@pages.get(addresses.SOUP_SVG)
def soup_svg(
    ns: str,
    name: str,
    plot: str,
    services: AppServices,
    principal: Reader,
    evidence: Which = None,
    theme: ThemeQuery = "light",
) -> Response:
    """One of its plots."""
    report, *_ = _report(services, principal, _soup(services, principal, ns, name), evidence)
    return svg_response(report_plots(report, THEMES[theme]), plot)


@pages.get(addresses.SOUP + addresses.TWIN)
def soup(ns: str, name: str, services: AppServices, principal: Reader, evidence: Which = None) -> SoupReport:
    """What the page shows."""
    return _report(services, principal, _soup(services, principal, ns, name), evidence)[0]


@pages.get(addresses.SOUP)
def soup_page(
    request: Request, ns: str, name: str, services: AppServices, principal: Reader, evidence: Which = None
) -> Response:
    """The page."""
    row = _soup(services, principal, ns, name)
    report, number, count = _report(services, principal, row, evidence)
    return shown(
        request,
        "soup.html",
        report=report,
        row=row,
        number=number,
        count=count,
        **report_values(report),
        place=f"/soups/{row.namespace}/{row.name}@{row.version}",
        which=f"?evidence={number}" if count > 1 else "",
    )


def _soup(services: Services, principal: Principal, ns: str, name: str) -> AdapterRow:
    """The soup of a name; raises NotFound for an adapter, which nobody mixed."""
    row = adapter_named(services, principal, ns, name)
    if row.recipe_digest is None:
        raise NotFound(f"{row.ref} is an adapter and not a soup: nothing was mixed.", param="name")
    return row


def _report(
    services: Services, principal: Principal, row: AdapterRow, which: int | None
) -> tuple[SoupReport, int, int]:
    """The report by one of the evidence, which it is, and how many there are; raises NotFound for one that is not."""
    lineage = lineage_of(services, principal.namespaces, row)
    count = len(lineage.evidence)
    number = count if which is None else which
    if number > count:
        raise NotFound(f"{row.ref} has evidence 1 to {count}.", param="evidence")
    told = dict(lineage.evidence[number - 1]) if count else {}
    at = told.pop("created_at", None)
    evidence = Evidence.model_validate(told)
    seen = {one.digest: (one.ref, "") for one in lineage.parents if one.ref is not None}
    with services.registry.database.read() as catalogue:
        found = None if row.recipe_digest is None else catalogue.soups.recipe(row.recipe_digest)
    report = SoupReport(
        model=row.ref,
        abstained=False,
        reason="",
        recipe=lineage.recipe,
        cooked_at=row.created_at if at is None else datetime.fromisoformat(at),
        mixing=None if found is None else found.report,
        evidence=evidence,
        names={**seen, **named(evidence)},
    )
    return report, number, count
