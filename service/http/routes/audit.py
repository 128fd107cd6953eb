"""`GET /v1/audit`: who did what, newest first (scope admin)."""

from __future__ import annotations

from fastapi import APIRouter

from service.http.app_parts import AppParts
from service.http.auth import Admin
from service.http.bodies import CheckedRoute
from service.http.paging import Cursor, Limit, page_size
from service.http.schemas.audit import AuditEntry, AuditList

router = APIRouter(prefix="/v1/audit", tags=["keys"], route_class=CheckedRoute)


@router.get("")
def list_audit(parts: AppParts, who: Admin, limit: Limit = None, cursor: Cursor = None) -> AuditList:
    """One page of what was done in the namespaces this key sees."""
    with parts.registry.database.read() as catalogue:
        page = catalogue.audit.list(who.namespaces, limit=page_size(limit, parts), cursor=cursor)
    entries = [AuditEntry.model_validate(row, from_attributes=True) for row in page.rows]
    return AuditList(data=entries, next_cursor=page.next_cursor)
