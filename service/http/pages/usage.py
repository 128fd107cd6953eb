"""The page of usage: requests and tokens by day, model, key or namespace, as `GET /v1/usage` counts them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, NamedTuple, cast, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from plots.charts import stacked_bars
from plots.style import THEMES
from registry.errors import InvalidParameter
from service.http.app_services import AppServices
from service.http.pages import paths
from service.http.pages.downloads import ThemeQuery, svg_response
from service.http.pages.forms import Text, parse_date, text_or_none
from service.http.pages.page import PageRoute, render_page
from service.http.requests.paging import Cursor, Limit
from service.http.routes.usage import Anyone, UsageListQuery, get_usage
from service.http.schemas.usage import Group, UsageEntry, UsageList

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
GROUP_LABELS: dict[Group, str] = {"day": "Day", "model": "Model", "key_id": "Key", "namespace": "Namespace"}
MAX_BARS = 25
"""Rows of the plot."""


class UsageQuery(NamedTuple):
    """The filters of a query as text, which a route parses after the rest of the query has been validated."""

    since: str | None
    until: str | None
    by: str | None

    @property
    def group(self) -> Group:
        """The grouping, by day if none is given; raises InvalidParameter."""
        group = text_or_none(self.by) or "day"
        if group not in get_args(Group):
            raise InvalidParameter(f"'by' is one of {', '.join(get_args(Group))}.", param="by")
        return cast(Group, group)

    def parse(self, **page: Any) -> UsageListQuery:
        """Return the filters with a format or a page, as `get_usage` takes them; raises InvalidParameter."""
        since, until = parse_date(self.since, "since"), parse_date(self.until, "until")
        return UsageListQuery(since=since, until=until, by=[self.group], **page)


def usage_query(
    since: Text = None, until: Text = None, by: Annotated[str | None, Query(max_length=20)] = None
) -> UsageQuery:
    """The filters of a query."""
    return UsageQuery(since, until, by)


Filters = Annotated[UsageQuery, Depends(usage_query)]


@pages.get(paths.USAGE + paths.CSV, response_model=None)
def usage_csv(services: AppServices, principal: Anyone, filters: Filters) -> Response | UsageList:
    """All rows as a CSV file."""
    return get_usage(services, principal, filters.parse(format="csv"))


@pages.get(paths.USAGE + paths.JSON)
def usage(
    services: AppServices, principal: Anyone, filters: Filters, limit: Limit = None, cursor: Cursor = None
) -> UsageList:
    """The content of the page."""
    usage_list = get_usage(services, principal, filters.parse(limit=limit, cursor=cursor))
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
    labels = [row_label(row, filters.group) for row in rows]
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
    group = filters.group
    usage_list = usage(services, principal, filters, limit, cursor)
    return render_page(
        request,
        "usage.html",
        usage=usage_list,
        rows=[(row_label(row, group), row) for row in usage_list.data],
        filters={"since": text_or_none(filters.since), "until": text_or_none(filters.until), "by": group},
        groups=GROUP_LABELS,
        max_bars=MAX_BARS,
        limit=limit,
        cursor=cursor,
    )


def row_label(row: UsageEntry, group: Group) -> str:
    """The day, model, key or namespace of a row."""
    return str(getattr(row, group) or "–")
