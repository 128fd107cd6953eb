"""Fitted selectors: immutable rows, and which of them serves a pool and spec.

A pool that returns to members it had before is fitted to a selector that is stored already: that row then serves
again, although others were stored after it.
"""

from __future__ import annotations

import builtins

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, exists, insert, select, true, update

from registry.catalogue.repository import Repository
from registry.catalogue.rows import Namespaces, Page, SelectorRow
from registry.catalogue.tables import EVERY, selector_namespaces, selector_targets, selectors
from registry.errors import NotFound
from registry.spec import PoolSpec, SelectorSpec

SERVING = select(selectors).join(selector_targets, selector_targets.c.selector == selectors.c.sequence)


class Selectors(Repository[SelectorRow]):
    """Selector rows."""

    values = TypeAdapter(SelectorRow)

    def add(self, new: SelectorRow) -> SelectorRow:
        """Store a fitted selector, which serves its pool and spec from now on; a known id gives the stored row."""
        pool = new.pool
        if self._one(select(selectors).where(selectors.c.id == new.id)) is None:
            columns = self.values.dump_python(new, mode="json") | {"fitted_at": new.fitted_at}
            inserted = insert(selectors).values(**columns, base_fingerprint=pool.base_fingerprint)
            sequence = self._connection.execute(inserted.returning(selectors.c.sequence)).scalar_one()
            for namespace in (EVERY,) if pool.namespaces is None else sorted(set(pool.namespaces)):
                self._insert(selector_namespaces, selector=sequence, namespace=namespace)
        self._serve(new.id, new.pool_id, new.spec_digest)
        return self.get(None, new.id)

    def _serve(self, id: str, pool_id: str, spec_digest: str) -> None:
        chosen = select(selectors.c.sequence).where(selectors.c.id == id).scalar_subquery()
        same = update(selector_targets).where(*_target(pool_id, spec_digest))
        changed = self._connection.execute(same.values(selector=chosen))
        if changed.rowcount == 0:
            self._insert(selector_targets, pool_id=pool_id, spec_digest=spec_digest, selector=chosen)

    def get(self, visible: Namespaces, id: str) -> SelectorRow:
        """A selector whose whole pool is visible; raises NotFound."""
        row = self._one(select(selectors).where(selectors.c.id == id, _visible(visible)))
        if row is None:
            raise NotFound(f"There is no selector {id[:80]!r}, or this key does not see its pool.", param="id")
        return row

    def latest(self, pool_id: str, spec_digest: str) -> SelectorRow | None:
        """The selector that serves a pool and spec: fitted last, or fitted again to the same."""
        return self._one(SERVING.where(*_target(pool_id, spec_digest)))

    def list(self, visible: Namespaces, *, limit: int, cursor: str | None = None) -> Page[SelectorRow]:
        """Selectors whose whole pool is visible, newest first."""
        query = select(selectors).where(_visible(visible))
        return self._page(query, selectors.c.sequence, limit=limit, cursor=cursor)

    def targets(self, base_fingerprint: str) -> builtins.list[tuple[PoolSpec, SelectorSpec]]:
        """Every pool and spec that was ever fitted over adapters of a base, in the order of what serves them."""
        query = SERVING.where(selectors.c.base_fingerprint == base_fingerprint)
        return [(row.pool, row.spec) for row in self._all(query.order_by(selectors.c.sequence))]


def _visible(visible: Namespaces) -> ColumnElement[bool]:
    """No namespace of the pool is outside of those that are visible."""
    if visible is None:
        return true()
    return ~exists().where(
        selector_namespaces.c.selector == selectors.c.sequence, selector_namespaces.c.namespace.not_in(visible)
    )


def _target(pool_id: str, spec_digest: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return selector_targets.c.pool_id == pool_id, selector_targets.c.spec_digest == spec_digest
