"""The audit log: which key did what, written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import func, select

from registry.catalogue.repository import Repository, matching, now, seen_by
from registry.catalogue.rows import AuditRow, Namespaces, Page
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
        self,
        visible: Namespaces,
        *,
        action: str | None = None,
        subject: str | None = None,
        namespace: str | None = None,
        key_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page[AuditRow]:
        """Entries of the visible namespaces that match every filter, newest first.

        An `action` that ends with a dot is a prefix (`key.`). `since` is included, `until` is not.
        """
        conditions = matching(audit, subject=subject, namespace=namespace, key_id=key_id)
        query = select(audit).where(seen_by(visible, audit.c.namespace), *conditions)
        if action is not None:
            # not LIKE, which ignores case on SQLite
            compared = func.substr(audit.c.action, 1, len(action)) if action.endswith(".") else audit.c.action
            query = query.where(compared == action)
        if since is not None:
            query = query.where(audit.c.at >= since)
        if until is not None:
            query = query.where(audit.c.at < until)
        return self._page(query, audit.c.id, limit=limit, cursor=cursor)
