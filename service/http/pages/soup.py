"""The page that explains a soup: the report of a cook, from the newest or an earlier evidence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from plots.style import THEMES
from registry.catalogue.rows import AdapterRow
from registry.errors import NotFound
from registry.spec import Evidence
from service.access.keys import Principal
from service.http.answers.lineage import lineage_of
from service.http.app_services import AppServices
from service.http.models.named_models import adapter_named
from service.http.pages.downloads import ThemeQuery, csv_response, svg_response
from service.http.pages.page import PageRoute, render_page
from service.http.pages.report import CookReport, names_by_digest, report_context, report_drawings, report_tables
from service.http.security.auth import Reader
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
EvidenceNumber = Annotated[int | None, Query(ge=1, description="Of several, which evidence: 1 is the oldest.")]


@dataclass(frozen=True)
class NumberedReport:
    """A soup, the report of one of its cooks, the number of that cook from 1, and the count of all."""

    row: AdapterRow
    report: CookReport
    number: int
    count: int


@pages.get("/soups/{ns}/{name}/{table}.csv")
def soup_csv(
    ns: str, name: str, table: str, services: AppServices, principal: Reader, evidence: EvidenceNumber = None
) -> Response:
    """A table of the report as a CSV file."""
    return csv_response(report_tables(soup(ns, name, services, principal, evidence)), table)


@pages.get("/soups/{ns}/{name}/{plot}.svg")
def soup_svg(
    ns: str,
    name: str,
    plot: str,
    services: AppServices,
    principal: Reader,
    evidence: EvidenceNumber = None,
    theme: ThemeQuery = "light",
) -> Response:
    """A plot of the report."""
    return svg_response(report_drawings(soup(ns, name, services, principal, evidence), THEMES[theme]), plot)


@pages.get("/soups/{ns}/{name}.json")
def soup(ns: str, name: str, services: AppServices, principal: Reader, evidence: EvidenceNumber = None) -> CookReport:
    """The content of the page."""
    return _load_report(services, principal, ns, name, evidence).report


@pages.get("/soups/{ns}/{name}")
def soup_page(
    request: Request, ns: str, name: str, services: AppServices, principal: Reader, evidence: EvidenceNumber = None
) -> Response:
    """The page."""
    loaded = _load_report(services, principal, ns, name, evidence)
    row = loaded.row
    return render_page(
        request,
        "soup.html",
        row=row,
        report=loaded.report,
        number=loaded.number,
        count=loaded.count,
        page_path=f"/soups/{row.namespace}/{row.name}@{row.version}",
        page_query=f"?evidence={loaded.number}" if loaded.count > 1 else "",
        **report_context(loaded.report),
    )


def _load_report(services: Services, principal: Principal, ns: str, name: str, number: int | None) -> NumberedReport:
    """The report of the evidence of this number, else of the newest; raises NotFound for an adapter, or no evidence."""
    row = adapter_named(services, principal, ns, name)
    if row.recipe_digest is None:
        raise NotFound(f"{row.ref} is an adapter and not a soup: nothing was mixed.", param="name")
    lineage = lineage_of(services, principal.namespaces, row)
    count = len(lineage.evidence)
    number = count if number is None else number
    if number > count:
        raise NotFound(f"{row.ref} has only reports 1 to {count}.", param="evidence")
    fields = dict(lineage.evidence[number - 1]) if count else {}
    cooked_at = fields.pop("created_at", None)
    evidence = Evidence.model_validate(fields)
    names = {parent.digest: (parent.ref, "") for parent in lineage.parents if parent.ref is not None}
    with services.registry.database.read() as catalogue:
        recipe = catalogue.soups.recipe(row.recipe_digest)
    report = CookReport(
        model=row.ref,
        abstained=False,
        reason="",
        cooked_at=row.created_at if cooked_at is None else datetime.fromisoformat(cooked_at),
        recipe=lineage.recipe,
        mixing=None if recipe is None else recipe.report,
        evidence=evidence,
        names=names | names_by_digest(evidence),
    )
    return NumberedReport(row, report, number, count)
