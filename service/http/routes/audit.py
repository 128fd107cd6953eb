"""`GET /v1/audit`: who did what, newest first, as JSON or as CSV (scope admin)."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from registry.catalogue.rows import AuditRow, Page
from service.http.app_services import AppServices
from service.http.files.csv_lines import CSV, csv_file
from service.http.requests.bodies import CheckedRoute
from service.http.requests.paging import Cursor, Limit, page_size
from service.http.schemas.audit import AuditEntry, AuditList
from service.http.schemas.wire import Moment
from service.http.security.auth import Admin

router = APIRouter(prefix="/v1/audit", tags=["keys"], route_class=CheckedRoute)


Word = Annotated[str | None, Query(max_length=300)]
Action = Annotated[
    str | None,
    Query(max_length=64, description="Only this action, or with a dot at its end all that begin so: `key.`."),
]
Since = Annotated[Moment | None, Query(description="Only from this moment on, with its offset.")]
Until = Annotated[Moment | None, Query(description="Only before this moment, with its offset.")]


COLUMNS = ("at", "action", "subject", "namespace", "key_id", "request_id", "detail")


@router.get("", response_model=AuditList, responses=CSV)
def list_audit(
    services: AppServices,
    principal: Admin,
    action: Action = None,
    subject: Word = None,
    namespace: Word = None,
    key_id: Word = None,
    since: Since = None,
    until: Until = None,
    format: Annotated[Literal["json", "csv"], Query(description="`csv` is all of it, as a file.")] = "json",
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response | AuditList:
    """One page of what was done in the namespaces this key sees, as far as it matches every filter."""

    def page(size: int, cursor: str | None) -> Page[AuditRow]:
        with services.registry.database.read() as catalogue:
            return catalogue.audit.list(
                principal.namespaces,
                action=action,
                subject=subject,
                namespace=namespace,
                key_id=key_id,
                since=since,
                until=until,
                limit=size,
                cursor=cursor,
            )

    if format == "csv":
        return csv_file("audit.csv", COLUMNS, partial(page, services.settings.max_page_size), _cells)
    current = page(page_size(limit, services), cursor)
    entries = [AuditEntry.model_validate(row, from_attributes=True) for row in current.rows]
    return AuditList(data=entries, next_cursor=current.next_cursor)


def _cells(row: AuditRow) -> tuple[object, ...]:
    """Return the cells of COLUMNS for an entry."""
    detail = json.dumps(row.detail, ensure_ascii=False)
    return row.at.isoformat(), row.action, row.subject, row.namespace, row.key_id, row.request_id, detail
