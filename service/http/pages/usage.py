"""The page of usage: requests and tokens by day, model, key or namespace, as `GET /v1/usage` counts them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response

from plots.charts import stacked_bars
from plots.style import THEMES
from registry.errors import InvalidParameter
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import Text, day, given
from service.http.pages.page import PageRoute, shown
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.requests.paging import Cursor, Limit
from service.http.routes.usage import Anyone, get_usage
from service.http.schemas.usage import Group, UsageEntry, UsageList

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
By = Annotated[str | None, Query(max_length=20)]
TOLD_APART: dict[Group, str] = {"day": "Day", "model": "Model", "key_id": "Key", "namespace": "Namespace"}
MAX_BARS = 25
"""Of the plot."""


@pages.get(addresses.USAGE + addresses.CSV)
def usage_csv(
    services: AppServices, principal: Anyone, since: Text = None, until: Text = None, by: By = None
) -> Response:
    """All of it, as a file."""
    found = get_usage(
        services, principal, since=day(since, "since"), until=day(until, "until"), by=[_group(by)], format="csv"
    )
    assert isinstance(found, Response)
    return found


@pages.get(addresses.USAGE + addresses.TWIN)
def usage(
    services: AppServices,
    principal: Anyone,
    since: Text = None,
    until: Text = None,
    by: By = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> UsageList:
    """What the page shows."""
    found = get_usage(
        services,
        principal,
        since=day(since, "since"),
        until=day(until, "until"),
        by=[_group(by)],
        limit=limit,
        cursor=cursor,
    )
    assert isinstance(found, UsageList)
    return found


@pages.get(addresses.USAGE_SVG)
def usage_svg(
    services: AppServices,
    principal: Anyone,
    since: Text = None,
    until: Text = None,
    by: By = None,
    limit: Limit = None,
    cursor: Cursor = None,
    theme: ThemeQuery = "light",
) -> Response:
    """Tokens read and written by the first rows of the page."""
    rows = usage(services, principal, since, until, by, limit, cursor).data[:MAX_BARS]
    series = {"tokens read": [row.tokens_in for row in rows], "tokens written": [row.tokens_out for row in rows]}
    labels = [named(row, _group(by)) for row in rows]
    return svg_response({"plot": partial(stacked_bars, labels, series, theme=THEMES[theme])} if rows else {})


@pages.get(addresses.USAGE)
def usage_page(
    request: Request,
    services: AppServices,
    principal: Anyone,
    since: Text = None,
    until: Text = None,
    by: By = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    group = _group(by)
    found = usage(services, principal, since, until, by, limit, cursor)
    asked: dict[str, Any] = {"since": given(since), "until": given(until), "by": group}
    return shown(
        request,
        "usage.html",
        found=found,
        asked=asked,
        groups=TOLD_APART,
        group=group,
        most=MAX_BARS,
        rows=[(named(one, group), one) for one in found.data],
        limit=limit,
        cursor=cursor,
    )


def named(one: UsageEntry, group: Group) -> str:
    """What a row is of."""
    return str(getattr(one, group) or "–")


def _group(by: str | None) -> Group:
    """What rows are told apart by, days where nothing is said; raises InvalidParameter."""
    wanted = given(by) or "day"
    for one in get_args(Group):
        if one == wanted:
            found: Group = one
            return found
    raise InvalidParameter(f"'by' is one of {', '.join(get_args(Group))}.", param="by")
