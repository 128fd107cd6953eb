"""`GET /v1/audit`: who did what, newest first (scope admin)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.http.app_parts import AppParts
from service.http.auth import Admin
from service.http.bodies import CheckedRoute
from service.http.paging import Cursor, Limit, page_size
from service.http.schemas.audit import AuditEntry, AuditList
from service.http.schemas.wire import Moment

router = APIRouter(prefix="/v1/audit", tags=["keys"], route_class=CheckedRoute)


Word = Annotated[str | None, Query(max_length=300)]
Action = Annotated[
    str | None,
    Query(max_length=64, description="Only this action, or with a dot at its end all that begin so: `key.`."),
]
Since = Annotated[Moment | None, Query(description="Only from this moment on, with its offset.")]
Until = Annotated[Moment | None, Query(description="Only before this moment, with its offset.")]


@router.get("")
def list_audit(
    parts: AppParts, who: Admin, action: Action = None, subject: Word = None, namespace: Word = None,
    key_id: Word = None, since: Since = None, until: Until = None, limit: Limit = None, cursor: Cursor = None,
) -> AuditList:  # fmt: skip
    """One page of what was done in the namespaces this key sees, as far as it matches every filter."""
    with parts.registry.database.read() as catalogue:
        page = catalogue.audit.list(
            who.namespaces, action=action, subject=subject, namespace=namespace, key_id=key_id, since=since,
            until=until, limit=page_size(limit, parts), cursor=cursor,
        )  # fmt: skip
    entries = [AuditEntry.model_validate(row, from_attributes=True) for row in page.rows]
    return AuditList(data=entries, next_cursor=page.next_cursor)
