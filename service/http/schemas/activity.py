"""Bodies of `/v1/usage` and `/v1/audit`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from service.http.schemas.wire import Listing, Page, Wire

Group = Literal["day", "key_id", "namespace", "model"]


class UsageTotal(Wire):
    """Requests that the engine started, and their prompt and generated tokens."""

    requests: int
    tokens_in: int
    tokens_out: int


class UsageEntry(UsageTotal):
    """A sum of usage; columns that it is not grouped by are null."""

    day: str | None
    """The day, in UTC."""
    key_id: str | None
    namespace: str | None
    """The namespace of the model; for a base model the key's own."""
    model: str | None
    """`namespace/name@version`, or `base/<id>`."""


class UsageList(Listing[UsageEntry]):
    """One page of usage, last day first."""

    total: UsageTotal = Field(description="The total of all pages.")
    next_cursor: str | None = None


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
