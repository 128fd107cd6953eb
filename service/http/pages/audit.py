"""The page of the audit log, newest entries first, with the filters of `GET /v1/audit`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from service.http.app_services import AppServices
from service.http.pages.forms import Midnight, Text
from service.http.pages.page import PageRoute, render_page
from service.http.requests.parameters import Cursor, Limit
from service.http.routes.audit import AuditListQuery, list_audit
from service.http.schemas.audit import AuditList
from service.http.security.auth import Admin

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


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


Filters = Annotated[dict[str, Any], Depends(audit_filters)]


@pages.get("/audit.csv", response_model=None)
def audit_csv(services: AppServices, principal: Admin, filters: Filters) -> Response | AuditList:
    """All entries as a CSV file."""
    return list_audit(services, principal, AuditListQuery.model_construct(**filters, format="csv"))


@pages.get("/audit.json", response_model=AuditList)
def audit(
    services: AppServices, principal: Admin, filters: Filters, limit: Limit = None, cursor: Cursor = None
) -> Response | AuditList:
    """The content of the page."""
    return list_audit(services, principal, AuditListQuery.model_construct(**filters, limit=limit, cursor=cursor))


@pages.get("/audit")
def audit_page(
    request: Request,
    services: AppServices,
    principal: Admin,
    filters: Filters,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page."""
    days = {name: filters[name].date().isoformat() if filters[name] else None for name in ("since", "until")}
    audit_log = audit(services, principal, filters, limit, cursor)
    return render_page(
        request, "audit.html", audit_log=audit_log, filters={**filters, **days}, limit=limit, cursor=cursor
    )
