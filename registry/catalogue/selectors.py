"""Fitted selectors: immutable rows, and which of them serves a pool and spec.

A pool that returns to members it had before is fitted to a selector that is stored already: that row then serves
again, although others were stored after it.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Select, exists, insert, select, true, update

from registry.catalogue.paging import now, page_of
from registry.catalogue.rows import MemberRow, Namespaces, Page, SelectorRow
from registry.catalogue.tables import EVERY, selector_namespaces, selector_targets, selectors
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
        """Store a fitted selector, which serves its pool and spec from now on; a known id gives the stored row."""
        if self._one(select(selectors).where(selectors.c.id == id)) is None:
            inserted = insert(selectors).values(
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
            sequence = self._connection.execute(inserted.returning(selectors.c.sequence)).scalar_one()
            for namespace in (EVERY,) if pool.namespaces is None else sorted(set(pool.namespaces)):
                self._connection.execute(insert(selector_namespaces).values(selector=sequence, namespace=namespace))
        self._serve(id, pool_id, spec_digest)
        return self.get(None, id)

    def _serve(self, id: str, pool_id: str, spec_digest: str) -> None:
        chosen = select(selectors.c.sequence).where(selectors.c.id == id).scalar_subquery()
        same = (selector_targets.c.pool_id == pool_id, selector_targets.c.spec_digest == spec_digest)
        changed = self._connection.execute(update(selector_targets).where(*same).values(selector=chosen))
        if changed.rowcount == 0:
            values = {"pool_id": pool_id, "spec_digest": spec_digest, "selector": chosen}
            self._connection.execute(insert(selector_targets).values(**values))

    def get(self, visible: Namespaces, id: str) -> SelectorRow:
        """A selector whose whole pool is visible; raises NotFound."""
        row = self._one(select(selectors).where(selectors.c.id == id, _visible(visible)))
        if row is None:
            raise NotFound(f"There is no selector {id[:80]!r}, or this key does not see its pool.", param="id")
        return row

    def latest(self, pool_id: str, spec_digest: str) -> SelectorRow | None:
        """The selector that serves a pool and spec: fitted last, or fitted again to the same."""
        query = select(selectors).join(selector_targets, selector_targets.c.selector == selectors.c.sequence)
        return self._one(
            query.where(selector_targets.c.pool_id == pool_id, selector_targets.c.spec_digest == spec_digest)
        )

    def list(self, visible: Namespaces, *, limit: int, cursor: str | None = None) -> Page[SelectorRow]:
        """Selectors whose whole pool is visible, newest first."""
        query = select(selectors).where(_visible(visible))
        return page_of(self._connection, query, selectors.c.sequence, limit=limit, cursor=cursor, make=_row)

    def targets(self, base_fingerprint: str) -> builtins.list[tuple[PoolSpec, SelectorSpec]]:
        """Every pool and spec that was ever fitted over adapters of a base, in the order of what serves them."""
        query = (
            select(selectors)
            .join(selector_targets, selector_targets.c.selector == selectors.c.sequence)
            .where(selectors.c.base_fingerprint == base_fingerprint)
            .order_by(selectors.c.sequence)
        )
        rows = [_row(row) for row in self._connection.execute(query).mappings()]
        return [(row.pool, row.spec) for row in rows]

    def _one(self, query: Select[Any]) -> SelectorRow | None:
        row = self._connection.execute(query).mappings().first()
        return None if row is None else _row(row)


def _visible(visible: Namespaces) -> ColumnElement[bool]:
    """No namespace of the pool is outside of those that are visible."""
    if visible is None:
        return true()
    return ~exists().where(
        selector_namespaces.c.selector == selectors.c.sequence, selector_namespaces.c.namespace.not_in(visible)
    )


def _row(row: Any) -> SelectorRow:
    same = ("id", "pool_id", "spec_digest", "encoder_digest", "state_blob", "report", "fitted_at")
    return SelectorRow(
        **{field: row[field] for field in same},
        pool=PoolSpec.model_validate(row["pool"]),
        spec=SPEC.validate_python(row["spec"]),
        members=tuple(MemberRow(**member) for member in row["members"]),
    )
