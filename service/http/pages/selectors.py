"""The pages of fitted selectors: the list, and one selector with its members, measurements and soups."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from registry.spec import PoolSpec
from service.http.app_services import AppServices
from service.http.pages.downloads import Column, Table, csv_response
from service.http.pages.page import PageRoute, render_page
from service.http.requests.parameters import Cursor, Limit
from service.http.routes.selectors import get_selector, list_selectors
from service.http.schemas.selectors import Selector
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
pages.add_api_route("/selectors.json", list_selectors)
SHARES = frozenset(
    {
        "explained_variance",
        "held_out_accuracy",
        "held_out_posterior",
        "training_purity",
        "domains_passing",
    }
)
"""Measurements that are shares of 1."""
MAX_SOUPS = 50
"""Soups that the page of a selector names."""
MAX_MEMBERS = 200
"""Members in the table on the page; the CSV file has all."""


class SelectorPage(Wire):
    """A fitted selector, and the soups that were cooked with it."""

    object: Literal["selector_page"] = "selector_page"
    selector: Selector
    used_by: list[str]
    """Refs of live soups that this key sees, the newest first, at most MAX_SOUPS."""


@pages.get("/selectors")
def selectors_page(
    request: Request, services: AppServices, principal: Reader, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """The page."""
    page = list_selectors(services, principal, limit, cursor)
    pools = {selector.id: describe_pool(selector.pool) for selector in page.data}
    return render_page(request, "selectors.html", selectors=page, pools=pools, limit=limit, cursor=cursor)


@pages.get("/selectors/{id}.json")
def selector(id: str, services: AppServices, principal: Reader) -> SelectorPage:
    """The content of the page."""
    selector = get_selector(id, services, principal)
    with services.registry.database.read() as catalogue:
        soups = catalogue.soups.chosen_by(id, principal.namespaces, most=MAX_SOUPS)
    return SelectorPage(selector=selector, used_by=soups)


@pages.get("/selectors/{id}/{table}.csv")
def selector_csv(id: str, table: str, services: AppServices, principal: Reader) -> Response:
    """The table of all members as a CSV file."""
    return csv_response([_members_table(get_selector(id, services, principal))], table)


@pages.get("/selectors/{id}")
def selector_page(request: Request, id: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    page = selector(id, services, principal)
    fitted = page.selector
    base_ids = {base.shape.fingerprint: id for id, base in services.bases.items()}
    return render_page(
        request,
        "selector.html",
        selector=fitted,
        soups=page.used_by,
        pool=describe_pool(fitted.pool, base_ids.get(fitted.pool.base_fingerprint)),
        measurements=_measurements(fitted),
        shares=SHARES,
        warnings=fitted.report.get("warnings", []),
        spec=fitted.selector.model_dump(mode="json"),
        table=_members_table(fitted.model_copy(update={"members": fitted.members[:MAX_MEMBERS]})),
        max_members=MAX_MEMBERS,
    )


def describe_pool(pool: PoolSpec, base_id: str | None = None) -> str:
    """A pool as text: its namespaces, base model, method and tag."""
    filters = (
        "all namespaces" if pool.namespaces is None else ", ".join(pool.namespaces),
        f"base {base_id}" if base_id else "",
        f"method {pool.method}" if pool.method else "",
        f"tag {pool.tag}" if pool.tag else "",
        "soups too" if pool.include_soups else "",
    )
    return ", ".join(filter(None, filters))


def _measurements(selector: Selector) -> dict[str, Any]:
    """The figures and short texts of the fit's report."""
    return {
        name: value
        for name, value in selector.report.items()
        if isinstance(value, int | float | str) and name != "domains"
    }


def _members_table(selector: Selector) -> Table:
    columns = (Column("Adapter", "model"), Column("Domain"), Column("Digest"))
    rows = tuple((member.ref, member.domain, member.digest) for member in selector.members)
    return Table("members", "Adapters in the fit", columns, rows)
