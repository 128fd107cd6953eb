"""`GET /v1/audit`: the audit log, newest entries first, as JSON or CSV (scope admin)."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from registry.catalogue.rows import AuditRow, Page
from registry.spec.frozen import Frozen
from service.http.app_services import AppServices
from service.http.files.csv_lines import CSV, csv_file
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.audit import AuditEntry, AuditList
from service.http.schemas.wire import Moment
from service.http.security.auth import Admin

router = APIRouter(prefix="/v1/audit", tags=["keys"], route_class=CheckedRoute)
Word = Annotated[str | None, Field(max_length=300)]
COLUMNS = ("at", "action", "subject", "namespace", "key_id", "request_id", "detail")


class AuditListQuery(Frozen):
    """Filters of the audit log, its format and its paging."""

    action: str | None = Field(None, max_length=64)
    """An action, or a prefix of actions that ends with a dot: `key.`."""
    subject: Word = None
    namespace: Word = None
    key_id: Word = None
    since: Moment | None = None
    """Only entries from this date and time on, with UTC offset."""
    until: Moment | None = None
    """Only entries before this date and time, with UTC offset."""
    format: Literal["json", "csv"] = "json"
    """`csv` returns all entries as a file."""
    limit: Limit = None
    cursor: Cursor = None


@router.get("", response_model=AuditList, responses=CSV)
def list_audit(
    services: AppServices, principal: Admin, query: Annotated[AuditListQuery, Query()]
) -> Response | AuditList:
    """One page of the entries of the namespaces that this key sees; an entry must match every filter."""

    filters = query.model_dump(exclude={"format", "limit", "cursor"})

    def page(size: int, cursor: str | None) -> Page[AuditRow]:
        with services.registry.database.read() as catalogue:
            return catalogue.audit.list(principal.namespaces, **filters, limit=size, cursor=cursor)

    if query.format == "csv":
        return csv_file("audit.csv", COLUMNS, partial(page, services.settings.max_page_size), _cells)
    current = page(page_size(query.limit, services), query.cursor)
    entries = [AuditEntry.model_validate(row, from_attributes=True) for row in current.rows]
    return AuditList(data=entries, next_cursor=current.next_cursor)


def _cells(row: AuditRow) -> tuple[object, ...]:
    """Return the cells of COLUMNS for an entry."""
    detail = json.dumps(row.detail, ensure_ascii=False)
    return row.at.isoformat(), row.action, row.subject, row.namespace, row.key_id, row.request_id, detail
