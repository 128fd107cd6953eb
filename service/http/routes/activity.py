"""`GET /v1/usage` and `GET /v1/audit`, as JSON or as CSV: the counted requests and tokens, and the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BeforeValidator, Field

from registry.catalogue.rows import AuditRow, Page
from registry.catalogue.usage import GROUPS, NUMBERS, UsageFilter, UsageRow
from registry.spec.frozen import Frozen
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.files.csv_lines import CSV, csv_file
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.activity import AuditEntry, AuditList, Group, UsageEntry, UsageList, UsageTotal
from service.http.schemas.wire import Moment, is_dated
from service.http.security.auth import Admin, needs

router = APIRouter(tags=["keys"], route_class=CheckedRoute)
Anyone = Annotated[Principal, Depends(needs("read", "write", "infer", "admin"))]
"""Every key may read its own usage."""
UsageWord = Annotated[str | None, Field(max_length=200)]
AuditWord = Annotated[str | None, Field(max_length=300)]
AUDIT_COLUMNS = ("at", "action", "subject", "namespace", "key_id", "request_id", "detail")


# --- usage --------------------------------------------------------------------------------------------


def _day(value: Any) -> Any:
    if isinstance(value, str) and not is_dated(value):
        raise ValueError("must be a day as YYYY-MM-DD, such as 2026-01-31")
    return value


Day = Annotated[date | None, BeforeValidator(_day)]


class UsageListQuery(Frozen):
    """Filters and groups of usage, its format and its paging."""

    since: Day = None
    """Only usage from this day on (UTC)."""
    until: Day = None
    """Only usage before this day (UTC)."""
    key_id: UsageWord = None
    namespace: UsageWord = None
    model: UsageWord = None
    by: list[Group] | None = Field(None, max_length=8)
    """The columns to group by; all four by default."""
    format: Literal["json", "csv"] = "json"
    """`csv` returns all rows as a file."""
    limit: Limit = None
    cursor: Cursor = None


@router.get("/v1/usage", response_model=UsageList, responses=CSV)
def get_usage(
    services: AppServices, principal: Anyone, query: Annotated[UsageListQuery, Query()]
) -> Response | UsageList:
    """The usage of this key, or with scope admin of all keys in the namespaces that it sees.

    Days are UTC. Counts of this server are current; other servers that share the database write theirs every few
    seconds.
    """
    services.usage.write()
    usage_filter = UsageFilter(
        principal.key_id,
        principal.namespaces if principal.has("admin") else (),
        since=query.since,
        until=query.until,
        values=query.model_dump(include={"key_id", "namespace", "model"}),
    )
    groups = tuple(query.by or GROUPS)

    def page(size: int, cursor: str | None) -> Page[UsageRow]:
        with services.registry.database.read() as catalogue:
            return catalogue.usage.list(usage_filter, by=groups, limit=size, cursor=cursor)

    if query.format == "csv":
        return csv_file(
            "usage.csv", usage_columns(groups), partial(page, services.settings.max_page_size), usage_cells(groups)
        )
    current = page(page_size(query.limit, services), query.cursor)
    with services.registry.database.read() as catalogue:
        total = catalogue.usage.total(usage_filter)
    return UsageList(
        data=[UsageEntry(**asdict(row)) for row in current.rows],
        total=UsageTotal(**asdict(total)),
        next_cursor=current.next_cursor,
    )


def usage_columns(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the CSV for these groups."""
    return (*(name for name in GROUPS if name in by), *NUMBERS)


def usage_cells(by: Sequence[str]) -> Callable[[UsageRow], tuple[object, ...]]:
    """Return a function that returns the cells of a row."""
    return attrgetter(*usage_columns(by))


# --- audit log ----------------------------------------------------------------------------------------


class AuditListQuery(Frozen):
    """Filters of the audit log, its format and its paging."""

    action: str | None = Field(None, max_length=64)
    """An action, or a prefix of actions that ends with a dot: `key.`."""
    subject: AuditWord = None
    namespace: AuditWord = None
    key_id: AuditWord = None
    since: Moment | None = None
    """Only entries from this date and time on, with UTC offset."""
    until: Moment | None = None
    """Only entries before this date and time, with UTC offset."""
    format: Literal["json", "csv"] = "json"
    """`csv` returns all entries as a file."""
    limit: Limit = None
    cursor: Cursor = None


@router.get("/v1/audit", response_model=AuditList, responses=CSV)
def list_audit(
    services: AppServices, principal: Admin, query: Annotated[AuditListQuery, Query()]
) -> Response | AuditList:
    """One page of the entries of the namespaces that this key sees; an entry must match every filter."""

    filters = query.model_dump(exclude={"format", "limit", "cursor"})

    def page(size: int, cursor: str | None) -> Page[AuditRow]:
        with services.registry.database.read() as catalogue:
            return catalogue.audit.list(principal.namespaces, **filters, limit=size, cursor=cursor)

    if query.format == "csv":
        return csv_file("audit.csv", AUDIT_COLUMNS, partial(page, services.settings.max_page_size), _audit_cells)
    current = page(page_size(query.limit, services), query.cursor)
    entries = [AuditEntry.model_validate(row, from_attributes=True) for row in current.rows]
    return AuditList(data=entries, next_cursor=current.next_cursor)


def _audit_cells(row: AuditRow) -> tuple[object, ...]:
    """Return the cells of AUDIT_COLUMNS for an entry."""
    detail = json.dumps(row.detail, ensure_ascii=False)
    return row.at.isoformat(), row.action, row.subject, row.namespace, row.key_id, row.request_id, detail
