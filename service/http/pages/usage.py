"""The page of usage: requests and tokens by day, model, key or namespace, as `GET /v1/usage` counts them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from plots.charts import stacked_bars
from plots.style import THEMES
from registry.errors import InvalidParameter
from service.http.app_parts import AppServices
from service.http.pages import paths
from service.http.pages.fields import Text, parse_date, text_or_none
from service.http.pages.page import PageRoute, render_page
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.requests.paging import Cursor, Limit
from service.http.routes.usage import Anyone, get_usage
from service.http.schemas.usage import Group, UsageEntry, UsageList

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
GROUP_LABELS: dict[Group, str] = {"day": "Day", "model": "Model", "key_id": "Key", "namespace": "Namespace"}
MAX_BARS = 25
"""Rows of the plot."""


@dataclass(frozen=True)
class UsageFilters:
    """The days, as YYYY-MM-DD, and the grouping of a query."""

    since: str | None
    until: str | None
    by: Group

    def arguments(self) -> dict[str, Any]:
        """The arguments of `get_usage`; raises InvalidParameter for a malformed day."""
        return {
            "since": parse_date(self.since, "since"),
            "until": parse_date(self.until, "until"),
            "by": [self.by],
        }


def usage_filters(
    since: Text = None, until: Text = None, by: Annotated[str | None, Query(max_length=20)] = None
) -> UsageFilters:
    """The filters of a query, by day if it has no grouping; raises InvalidParameter."""
    groups: dict[str, Group] = {group: group for group in get_args(Group)}
    name = text_or_none(by) or "day"
    if name not in groups:
        raise InvalidParameter(f"'by' is one of {', '.join(groups)}.", param="by")
    return UsageFilters(text_or_none(since), text_or_none(until), groups[name])


Filters = Annotated[UsageFilters, Depends(usage_filters)]


@pages.get(paths.USAGE + paths.CSV)
def usage_csv(services: AppServices, principal: Anyone, filters: Filters) -> Response:
    """All rows as a CSV file."""
    response = get_usage(services, principal, **filters.arguments(), format="csv")
    assert isinstance(response, Response)
    return response


@pages.get(paths.USAGE + paths.JSON)
def usage(
    services: AppServices, principal: Anyone, filters: Filters, limit: Limit = None, cursor: Cursor = None
) -> UsageList:
    """The content of the page."""
    usage_list = get_usage(services, principal, **filters.arguments(), limit=limit, cursor=cursor)
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
    labels = [row_label(row, filters.by) for row in rows]
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
    return render_page(
        request,
        "usage.html",
        usage=usage_list,
        rows=[(row_label(row, filters.by), row) for row in usage_list.data],
        filters={"since": filters.since, "until": filters.until, "by": filters.by},
        groups=GROUP_LABELS,
        max_bars=MAX_BARS,
        limit=limit,
        cursor=cursor,
    )


def row_label(row: UsageEntry, group: Group) -> str:
    """The day, model, key or namespace of a row."""
    return str(getattr(row, group) or "–")
