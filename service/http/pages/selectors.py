"""The pages of fitted selectors: all of them, and one: what it was fitted on, how good it is, and what it chose for."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.page import PageRoute, shown
from service.http.pages.tables import Column, Table, csv_of
from service.http.requests.paging import Cursor, Limit
from service.http.routes.selectors import get_selector, list_selectors
from service.http.schemas.selectors import Selector, SelectorList
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
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
USERS = 50
"""Soups that a page names."""
LISTED = 200
"""Members that the page's table has; the CSV has all."""


class SelectorPage(Wire):
    """A fitted selector, and the soups that were cooked with it."""

    object: Literal["selector_page"] = "selector_page"
    selector: Selector
    used_by: list[str]
    """Live soups that this key sees, by ref, the last cooked first; at most 50."""


@pages.get(addresses.SELECTORS + addresses.TWIN)
def selectors(services: AppServices, principal: Reader, limit: Limit = None, cursor: Cursor = None) -> SelectorList:
    """What the page shows."""
    return list_selectors(services, principal, limit=limit, cursor=cursor)


@pages.get(addresses.SELECTORS)
def selectors_page(
    request: Request, services: AppServices, principal: Reader, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """The page."""
    found = selectors(services, principal, limit, cursor)
    return shown(request, "selectors.html", found=found, pool=pool_in_words, limit=limit, cursor=cursor)


@pages.get(addresses.SELECTOR + addresses.TWIN)
def selector(id: str, services: AppServices, principal: Reader) -> SelectorPage:
    """What the page shows."""
    found = get_selector(id, services, principal)
    with services.registry.database.read() as catalogue:
        return SelectorPage(selector=found, used_by=catalogue.soups.chosen_by(id, principal.namespaces, most=USERS))


@pages.get(addresses.SELECTOR_CSV)
def selector_csv(id: str, table: str, services: AppServices, principal: Reader) -> Response:
    """One of its tables."""
    return csv_of([members(get_selector(id, services, principal))], table)


@pages.get(addresses.SELECTOR)
def selector_page(request: Request, id: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    found = selector(id, services, principal)
    one = found.selector
    return shown(
        request,
        "selector.html",
        found=found,
        pool=pool_in_words(one, services),
        measured=measurements(one),
        shares=SHARES,
        warnings=one.report.get("warnings", []),
        spec=one.selector.model_dump(mode="json"),
        table=members(one.model_copy(update={"members": one.members[:LISTED]})),
        listed=LISTED,
    )


def pool_in_words(found: Selector, services: Services | None = None) -> str:
    """The pool of a selector as people read it: all namespaces, or which; of which base, method and tag."""
    pool = found.pool
    bases = {} if services is None else {base.shape.fingerprint: id for id, base in services.bases.items()}
    told = ["all namespaces" if pool.namespaces is None else ", ".join(pool.namespaces)]
    told += [f"base {bases[pool.base_fingerprint]}"] if pool.base_fingerprint in bases else []
    told += [f"method {pool.method}"] if pool.method else []
    told += [f"tag {pool.tag}"] if pool.tag else []
    return ", ".join([*told, "soups too"] if pool.include_soups else told)


def measurements(found: Selector) -> dict[str, Any]:
    """What the fit measured, one value each."""
    return {
        name: value
        for name, value in found.report.items()
        if isinstance(value, int | float | str) and name != "domains"
    }


def members(found: Selector) -> Table:
    """What it was fitted on."""
    columns = (Column("Adapter", "model"), Column("Domain"), Column("Digest"))
    rows = tuple((one.ref, one.domain, one.digest) for one in found.members)
    return Table("members", "Adapters that it was fitted on", columns, rows)
