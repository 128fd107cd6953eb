"""The page of the audit: who did what, newest first, filtered as `GET /v1/audit` does it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import Text, begin_of, given
from service.http.pages.page import PageRoute, shown
from service.http.requests.paging import Cursor, Limit
from service.http.routes.audit import list_audit
from service.http.schemas.audit import AuditList
from service.http.security.auth import Admin

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


def filters(
    action: Text = None,
    subject: Text = None,
    namespace: Text = None,
    key_id: Text = None,
    since: Text = None,
    until: Text = None,
) -> dict[str, Any]:
    """The filters of a query, as `list_audit` takes them."""
    texts = {"action": action, "subject": subject, "namespace": namespace, "key_id": key_id}
    moments = {"since": begin_of(since, "since"), "until": begin_of(until, "until")}
    return {name: given(text) for name, text in texts.items()} | moments


Asked = Annotated[dict[str, Any], Depends(filters)]


@pages.get(addresses.AUDIT + addresses.CSV)
def audit_csv(services: AppServices, principal: Admin, asked: Asked) -> Response:
    """All of it, as a file."""
    found = list_audit(services, principal, **asked, format="csv")
    assert isinstance(found, Response)
    return found


@pages.get(addresses.AUDIT + addresses.TWIN)
def audit(
    services: AppServices, principal: Admin, asked: Asked, limit: Limit = None, cursor: Cursor = None
) -> AuditList:
    """What the page shows."""
    found = list_audit(services, principal, **asked, limit=limit, cursor=cursor)
    assert isinstance(found, AuditList)
    return found


@pages.get(addresses.AUDIT)
def audit_page(
    request: Request, services: AppServices, principal: Admin, asked: Asked, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """The page."""
    days = {name: asked[name].date().isoformat() if asked[name] else None for name in ("since", "until")}
    found = audit(services, principal, asked, limit, cursor)
    return shown(request, "audit.html", found=found, asked={**asked, **days}, limit=limit, cursor=cursor)
