"""The pages of usage and of the audit log, with the filters of `GET /v1/usage` and `GET /v1/audit`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BeforeValidator

from plots.charts import stacked_bars
from plots.style import THEMES
from service.http.app_services import AppServices
from service.http.pages.downloads import ThemeQuery, svg_response
from service.http.pages.forms import Day, Midnight, Text, text_or_none
from service.http.pages.page import PageRoute, render_page
from service.http.requests.parameters import Cursor, Limit
from service.http.routes.activity import Anyone, AuditListQuery, UsageListQuery, get_usage, list_audit
from service.http.schemas.activity import AuditList, Group, UsageEntry, UsageList
from service.http.security.auth import Admin

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
GROUP_LABELS: dict[Group, str] = {"day": "Day", "model": "Model", "key_id": "Key", "namespace": "Namespace"}
MAX_BARS = 25
"""Rows of the plot."""


def usage_filters(
    since: Day = None,
    until: Day = None,
    by: Annotated[Group, BeforeValidator(lambda field: text_or_none(field) or "day")] = "day",
) -> UsageListQuery:
    """The filters of a query, and the column that it groups by."""
    return UsageListQuery(since=since, until=until, by=[by])


UsageFilters = Annotated[UsageListQuery, Depends(usage_filters)]


@pages.get("/usage.csv", response_model=None)
def usage_csv(services: AppServices, principal: Anyone, filters: UsageFilters) -> Response | UsageList:
    """All rows as a CSV file."""
    return get_usage(services, principal, filters.model_copy(update={"format": "csv"}))


@pages.get("/usage.json")
def usage(
    services: AppServices, principal: Anyone, filters: UsageFilters, limit: Limit = None, cursor: Cursor = None
) -> UsageList:
    """The content of the page."""
    usage_list = get_usage(services, principal, filters.model_copy(update={"limit": limit, "cursor": cursor}))
    assert isinstance(usage_list, UsageList)
    return usage_list


@pages.get("/usage/plot.svg")
def usage_svg(
    services: AppServices,
    principal: Anyone,
    filters: UsageFilters,
    limit: Limit = None,
    cursor: Cursor = None,
    theme: ThemeQuery = "light",
) -> Response:
    """The tokens of the first rows of the page as a plot."""
    rows = usage(services, principal, filters, limit, cursor).data[:MAX_BARS]
    series = {"tokens read": [row.tokens_in for row in rows], "tokens written": [row.tokens_out for row in rows]}
    labels = [row_label(row, group_of(filters)) for row in rows]
    return svg_response({"plot": partial(stacked_bars, labels, series, theme=THEMES[theme])} if rows else {})


@pages.get("/usage")
def usage_page(
    request: Request,
    services: AppServices,
    principal: Anyone,
    filters: UsageFilters,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    group = group_of(filters)
    usage_list = usage(services, principal, filters, limit, cursor)
    return render_page(
        request,
        "usage.html",
        usage=usage_list,
        rows=[(row_label(row, group), row) for row in usage_list.data],
        filters={"since": filters.since, "until": filters.until, "by": group},
        groups=GROUP_LABELS,
        max_bars=MAX_BARS,
        limit=limit,
        cursor=cursor,
    )


def group_of(filters: UsageListQuery) -> Group:
    """The column that the page groups by."""
    assert filters.by
    return filters.by[0]


def row_label(row: UsageEntry, group: Group) -> str:
    """The day, model, key or namespace of a row."""
    return str(getattr(row, group) or "–")


# --- audit log ----------------------------------------------------------------------------------------


def audit_filters(
    action: Text = None,
    subject: Text = None,
    namespace: Text = None,
    key_id: Text = None,
    since: Midnight = None,
    until: Midnight = None,
) -> dict[str, Any]:
    """The filters of a query, as fields of AuditListQuery; some may be longer than its, and match nothing."""
    texts = {"action": action, "subject": subject, "namespace": namespace, "key_id": key_id}
    return {**texts, "since": since, "until": until}


AuditFilters = Annotated[dict[str, Any], Depends(audit_filters)]


@pages.get("/audit.csv", response_model=None)
def audit_csv(services: AppServices, principal: Admin, filters: AuditFilters) -> Response | AuditList:
    """All entries as a CSV file."""
    return list_audit(services, principal, AuditListQuery.model_construct(**filters, format="csv"))


@pages.get("/audit.json", response_model=AuditList)
def audit(
    services: AppServices, principal: Admin, filters: AuditFilters, limit: Limit = None, cursor: Cursor = None
) -> Response | AuditList:
    """The content of the page."""
    return list_audit(services, principal, AuditListQuery.model_construct(**filters, limit=limit, cursor=cursor))


@pages.get("/audit")
def audit_page(
    request: Request,
    services: AppServices,
    principal: Admin,
    filters: AuditFilters,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    days = {name: filters[name].date().isoformat() if filters[name] else None for name in ("since", "until")}
    audit_log = audit(services, principal, filters, limit, cursor)
    return render_page(
        request, "audit.html", audit_log=audit_log, filters={**filters, **days}, limit=limit, cursor=cursor
    )
