"""Bodies of `/v1/audit`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from service.http.schemas.wire import Page, Wire


class AuditEntry(Wire):
    """An entry of the audit log: a key's action on a subject, in a request."""

    object: Literal["audit"] = "audit"
    id: int
    at: datetime
    action: str
    subject: str
    namespace: str | None
    key_id: str | None
    request_id: str | None
    detail: dict[str, Any]


class AuditList(Page[AuditEntry]):
    """One page of the audit log, newest first."""
