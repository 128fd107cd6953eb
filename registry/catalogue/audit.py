"""The audit: who did what, written in the transaction of what was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import select

from registry.catalogue.repository import Repository, now, seen_by
from registry.catalogue.rows import AuditRow, Namespaces, Page
from registry.catalogue.tables import audit


class Audit(Repository[AuditRow]):
    """Audit entries."""

    values = TypeAdapter(AuditRow)

    def record(
        self, action: str, subject: str, *, key_id: str | None, request_id: str | None, detail: Mapping[str, Any]
    ) -> None:
        """Write an entry; a subject `ns/...` belongs to that namespace, any other to nobody but all-seeing keys."""
        namespace, slash, _ = subject.partition("/")
        self._insert(
            audit,
            at=now(),
            action=action,
            subject=subject,
            namespace=namespace if slash else None,
            key_id=key_id,
            request_id=request_id,
            detail=dict(detail),
        )

    def list(self, visible: Namespaces, *, limit: int, cursor: str | None = None) -> Page[AuditRow]:
        """Entries of the visible namespaces, newest first."""
        query = select(audit).where(seen_by(visible, audit.c.namespace))
        return self._page(query, audit.c.id, limit=limit, cursor=cursor)
