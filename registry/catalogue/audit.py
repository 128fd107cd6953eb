"""The audit: who did what, written in the transaction of what was done."""

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
        self, action: str, subject: str, *, key_id: str | None, request_id: str | None, detail: Mapping[str, Any],
        namespace: str | None = None,
    ) -> None:  # fmt: skip
        """Write an entry of a namespace, which a subject `ns/...` names itself; any other is for all-seeing keys."""
        begins, slash, _ = subject.partition("/")
        self._insert(
            audit,
            at=now(),
            action=action,
            subject=subject,
            namespace=begins if namespace is None and slash else namespace,
            key_id=key_id,
            request_id=request_id,
            detail=dict(detail),
        )

    def list(
        self, visible: Namespaces, *, action: str | None = None, subject: str | None = None,
        namespace: str | None = None, key_id: str | None = None, since: datetime | None = None,
        until: datetime | None = None, limit: int, cursor: str | None = None,
    ) -> Page[AuditRow]:  # fmt: skip
        """Entries of the visible namespaces that match every filter, newest first.

        An `action` that ends with a dot is the beginning of many (`key.`). `since` is included,
        `until` is not.
        """
        equal = matching(audit, subject=subject, namespace=namespace, key_id=key_id)
        query = select(audit).where(seen_by(visible, audit.c.namespace), *equal)
        if action is not None:
            # not LIKE, for which SQLite takes letters of either case
            begins = func.substr(audit.c.action, 1, len(action)) if action.endswith(".") else audit.c.action
            query = query.where(begins == action)
        if since is not None:
            query = query.where(audit.c.at >= since)
        if until is not None:
            query = query.where(audit.c.at < until)
        return self._page(query, audit.c.id, limit=limit, cursor=cursor)
