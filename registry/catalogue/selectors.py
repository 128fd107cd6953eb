"""Fitted selectors: immutable rows; the newest of a pool and spec is the one that serves."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, insert, select

from registry.catalogue.paging import now, page_of
from registry.catalogue.rows import MemberRow, Page, Scope, SelectorRow
from registry.catalogue.tables import selectors
from registry.errors import NotFound
from registry.spec import PoolSpec, SelectorSpec

SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


class Selectors:
    """Selector rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self, *, id: str, pool_id: str, pool: PoolSpec, spec: SelectorSpec, spec_digest: str,
        encoder_digest: str | None, state_blob: str, members: tuple[MemberRow, ...], report: Mapping[str, Any],
    ) -> SelectorRow:  # fmt: skip
        """Store a fitted selector; an id that is known gives the stored row."""
        known = self._one(select(selectors).where(selectors.c.id == id))
        if known is not None:
            return known
        self._connection.execute(
            insert(selectors).values(
                id=id,
                pool_id=pool_id,
                pool=pool.model_dump(mode="json"),
                spec=spec.model_dump(mode="json"),
                spec_digest=spec_digest,
                encoder_digest=encoder_digest,
                base_fingerprint=pool.base_fingerprint,
                state_blob=state_blob,
                members=[asdict(member) for member in members],
                report=dict(report),
                fitted_at=now(),
            )
        )
        return self.get(None, id)

    def get(self, scope: Scope, id: str) -> SelectorRow:
        """A selector whose whole pool is visible; raises NotFound."""
        row = self._one(select(selectors).where(selectors.c.id == id))
        if row is None or not _visible(row, scope):
            raise NotFound(f"There is no selector {id[:80]!r}, or this key does not see its pool.", param="id")
        return row

    def latest(self, pool_id: str, spec_digest: str) -> SelectorRow | None:
        """The newest selector of a pool and spec."""
        query = select(selectors).where(selectors.c.pool_id == pool_id, selectors.c.spec_digest == spec_digest)
        return self._one(query.order_by(selectors.c.sequence.desc()).limit(1))

    def list(self, scope: Scope, *, limit: int, cursor: str | None = None) -> Page[SelectorRow]:
        """Selectors whose whole pool is visible, newest first."""
        visible: builtins.list[SelectorRow] = []
        while True:  # pools are JSON: what the scope sees is filtered here, page by page
            page = page_of(
                self._connection, select(selectors), selectors.c.sequence,
                limit=limit - len(visible), cursor=cursor, make=_row,
            )  # fmt: skip
            visible += [row for row in page.rows if _visible(row, scope)]
            cursor = page.next_cursor
            if cursor is None or len(visible) == limit:
                return Page(rows=tuple(visible), next_cursor=cursor)

    def targets(self, base_fingerprint: str) -> builtins.list[tuple[PoolSpec, SelectorSpec]]:
        """Every pool and spec that was ever fitted over adapters of a base."""
        query = (
            select(selectors.c.pool_id, selectors.c.spec_digest)
            .where(selectors.c.base_fingerprint == base_fingerprint)
            .distinct()
        )
        found = [self.latest(pool_id, spec_digest) for pool_id, spec_digest in self._connection.execute(query).all()]
        return [(row.pool, row.spec) for row in found if row is not None]

    def _one(self, query: Select[Any]) -> SelectorRow | None:
        row = self._connection.execute(query).mappings().first()
        return None if row is None else _row(row)


def _visible(row: SelectorRow, scope: Scope) -> bool:
    if scope is None:
        return True
    return row.pool.namespaces is not None and set(row.pool.namespaces) <= set(scope)


def _row(row: Any) -> SelectorRow:
    same = ("id", "pool_id", "spec_digest", "encoder_digest", "state_blob", "report", "fitted_at")
    return SelectorRow(
        **{field: row[field] for field in same},
        pool=PoolSpec.model_validate(row["pool"]),
        spec=SPEC.validate_python(row["spec"]),
        members=tuple(MemberRow(**member) for member in row["members"]),
    )
