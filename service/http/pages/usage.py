"""The page of usage: requests and tokens by day, model, key or namespace, as `GET /v1/usage` counts them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from plots.charts import stacked_bars
from plots.style import THEMES
from registry.errors import InvalidParameter
from service.http.app_parts import AppServices
from service.http.pages import paths
from service.http.pages.downloads import ThemeQuery, svg_response
from service.http.pages.forms import Text, parse_date, text_or_none
from service.http.pages.page import PageRoute, render_page
from service.http.requests.paging import Cursor, Limit
from service.http.routes.usage import Anyone, get_usage
from service.http.schemas.usage import Group, UsageEntry, UsageList

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
GROUP_LABELS: dict[Group, str] = {"day": "Day", "model": "Model", "key_id": "Key", "namespace": "Namespace"}
MAX_BARS = 25
"""Rows of the plot."""


def usage_filters(
    since: Text = None, until: Text = None, by: Annotated[str | None, Query(max_length=20)] = None
) -> dict[str, Any]:
    """The filters of a query, by day if it has no grouping, as arguments of `get_usage`; raises InvalidParameter."""
    group = text_or_none(by) or "day"
    if group not in get_args(Group):
        raise InvalidParameter(f"'by' is one of {', '.join(get_args(Group))}.", param="by")
    return {"since": parse_date(since, "since"), "until": parse_date(until, "until"), "by": [group]}


Filters = Annotated[dict[str, Any], Depends(usage_filters)]


@pages.get(paths.USAGE + paths.CSV, response_model=None)
def usage_csv(services: AppServices, principal: Anyone, filters: Filters) -> Response | UsageList:
    """All rows as a CSV file."""
    return get_usage(services, principal, **filters, format="csv")


@pages.get(paths.USAGE + paths.JSON)
def usage(
    services: AppServices, principal: Anyone, filters: Filters, limit: Limit = None, cursor: Cursor = None
) -> UsageList:
    """The content of the page."""
    usage_list = get_usage(services, principal, **filters, limit=limit, cursor=cursor)
    assert isinstance(usage_list, UsageList)
    return usage_list


@pages.get(paths.USAGE_SVG)
def usage_svg(
    services: AppServices,
    principal: Anyone,
    filters: Filters,
    limit: Limit = None,
    cursor: Cursor = None,
    theme: ThemeQuery = "light",
) -> Response:
    """The tokens of the first rows of the page as a plot."""
    rows = usage(services, principal, filters, limit, cursor).data[:MAX_BARS]
    series = {"tokens read": [row.tokens_in for row in rows], "tokens written": [row.tokens_out for row in rows]}
    labels = [row_label(row, *filters["by"]) for row in rows]
    return svg_response({"plot": partial(stacked_bars, labels, series, theme=THEMES[theme])} if rows else {})


@pages.get(paths.USAGE)
def usage_page(
    request: Request,
    services: AppServices,
    principal: Anyone,
    filters: Filters,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    usage_list = usage(services, principal, filters, limit, cursor)
    days = {name: filters[name].isoformat() if filters[name] else None for name in ("since", "until")}
    (group,) = filters["by"]
    return render_page(
        request,
        "usage.html",
        usage=usage_list,
        rows=[(row_label(row, group), row) for row in usage_list.data],
        filters={**days, "by": group},
        groups=GROUP_LABELS,
        max_bars=MAX_BARS,
        limit=limit,
        cursor=cursor,
    )


def row_label(row: UsageEntry, group: Group) -> str:
    """The day, model, key or namespace of a row."""
    return str(getattr(row, group) or "–")
