"""The audit log: which key did what, written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, func, select

from registry.catalogue.repository import Repository, matching, now, seen_by
from registry.catalogue.rows import AuditFilters, AuditRow, Namespaces, Page
from registry.catalogue.tables import audit


class Audit(Repository[AuditRow]):
    """Audit entries."""

    values = TypeAdapter(AuditRow)

    def record(
        self,
        action: str,
        subject: str,
        *,
        key_id: str | None,
        request_id: str | None,
        detail: Mapping[str, Any],
        namespace: str | None = None,
    ) -> None:
        """Write an entry; its namespace is `namespace`, else that of a subject `ns/...`, else none.

        Entries without a namespace are visible to keys that see all namespaces.
        """
        first_segment, slash, _ = subject.partition("/")
        self._insert(
            audit,
            at=now(),
            action=action,
            subject=subject,
            namespace=first_segment if namespace is None and slash else namespace,
            key_id=key_id,
            request_id=request_id,
            detail=dict(detail),
        )

    def list(
        self, visible: Namespaces, *, limit: int, cursor: str | None = None, **filters: Unpack[AuditFilters]
    ) -> Page[AuditRow]:
        """Entries of the visible namespaces that match every filter, newest first."""
        query = select(audit).where(seen_by(visible, audit.c.namespace), *_conditions(filters))
        return self._page(query, audit.c.id, limit=limit, cursor=cursor)


def _conditions(filters: AuditFilters) -> list[ColumnElement[bool]]:
    conditions = matching(
        audit,
        subject=filters.get("subject"),
        namespace=filters.get("namespace"),
        key_id=filters.get("key_id"),
    )
    if (action := filters.get("action")) is not None:
        # not LIKE, which ignores case on SQLite
        compared = func.substr(audit.c.action, 1, len(action)) if action.endswith(".") else audit.c.action
        conditions.append(compared == action)
    if (since := filters.get("since")) is not None:
        conditions.append(audit.c.at >= since)
    if (until := filters.get("until")) is not None:
        conditions.append(audit.c.at < until)
    return conditions
