"""Fitted selectors: immutable rows, which of them serves a pool and spec, and when that was last requested.

Fitting a pool whose members are as they once were gives a selector that is stored already: that row serves again,
although others were stored after it.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, exists, insert, select, true

from registry.catalogue.repository import Repository, now
from registry.catalogue.rows import FittedRow, Namespaces, Page, SelectorRow, SelectorState
from registry.catalogue.tables import EVERY, selector_namespaces, selector_targets, selectors
from registry.errors import NotFound
from registry.spec import PoolSpec, SelectorSpec

SERVES = selector_targets.c.selector == selectors.c.sequence
SERVING = select(selectors).join(selector_targets, SERVES)
TARGETS = select(selectors.c.pool, selectors.c.spec).join(selector_targets, SERVES)
SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


class Selectors(Repository[SelectorRow]):
    """Selector rows."""

    values = TypeAdapter(SelectorRow)

    def add(self, new: SelectorRow) -> SelectorRow:
        """Store a fitted selector, unless its id is stored, and have it serve its pool and spec."""
        pool = new.pool
        if self._first(select(selectors).where(selectors.c.id == new.id)) is None:
            columns = self.values.dump_python(new, mode="json") | {"fitted_at": new.fitted_at}
            inserted = insert(selectors).values(**columns, base_fingerprint=pool.base_fingerprint)
            sequence = self._connection.execute(inserted.returning(selectors.c.sequence)).scalar_one()
            for namespace in (EVERY,) if pool.namespaces is None else sorted(set(pool.namespaces)):
                self._insert(selector_namespaces, selector=sequence, namespace=namespace)
        self._serve(new.id, new.pool_id, new.spec_digest)
        return self.get(None, new.id)

    def _serve(self, id: str, pool_id: str, spec_digest: str) -> None:
        sequence = select(selectors.c.sequence).where(selectors.c.id == id).scalar_subquery()
        if self._update(selector_targets, *_target(pool_id, spec_digest), selector=sequence) == 0:
            self._insert(selector_targets, pool_id=pool_id, spec_digest=spec_digest, selector=sequence, asked_at=now())

    def get(self, visible: Namespaces, id: str) -> SelectorRow:
        """A selector whose whole pool is visible; raises NotFound."""
        row = self._first(select(selectors).where(selectors.c.id == id, _visible(visible)))
        if row is None:
            raise NotFound(f"There is no selector {id[:80]!r}, or this key does not see its pool.", param="id")
        return row

    def is_visible(self, visible: Namespaces, id: str) -> bool:
        """Return True if there is such a selector and its whole pool is visible."""
        return self._exists(selectors.c.id == id, _visible(visible))

    def latest(self, pool_id: str, spec_digest: str) -> SelectorRow | None:
        """The selector that serves a pool and spec, None if there is none."""
        return self._first(SERVING.where(*_target(pool_id, spec_digest)))

    def latest_id(self, pool_id: str, spec_digest: str) -> str | None:
        """The id of `latest`, in a time that does not grow with the pool."""
        query = select(selectors.c.id).join(selector_targets, SERVES).where(*_target(pool_id, spec_digest))
        return self._connection.execute(query).scalar()

    def latest_state(self, pool_id: str, spec_digest: str) -> SelectorState | None:
        """The state of `latest`, in a time that does not grow with the pool."""
        columns = (*selectors.c["id", "spec", "encoder_digest", "state_blob"], selector_targets.c.asked_at)
        query = select(*columns).join(selector_targets, SERVES).where(*_target(pool_id, spec_digest))
        row = self._connection.execute(query).first()
        return None if row is None else SelectorState(row.id, SPEC.validate_python(row.spec), *row[2:])

    def list(self, visible: Namespaces, *, limit: int, cursor: str | None = None) -> Page[SelectorRow]:
        """Selectors whose whole pool is visible, newest first."""
        query = select(selectors).where(_visible(visible))
        return self._page(query, selectors.c.sequence, limit=limit, cursor=cursor)

    def serving(self, visible: Namespaces, kind: str) -> builtins.list[FittedRow]:
        """Selectors of a kind that serve a pool and whose whole pool is visible, newest first."""
        columns = (selectors.c[name] for name in ("id", "pool", "spec", "fitted_at", "report"))
        query = select(*columns).join(selector_targets, SERVES).where(_visible(visible))
        rows = self._connection.execute(query.order_by(selectors.c.fitted_at.desc(), selectors.c.id))
        return [
            FittedRow(row.id, PoolSpec.model_validate(row.pool), int(row.report["domains"]), row.fitted_at)
            for row in rows
            if row.spec["kind"] == kind
        ]

    def targets(
        self, base_fingerprint: str, *, requested_since: datetime | None = None
    ) -> builtins.list[tuple[PoolSpec, SelectorSpec]]:
        """Pools and specs served by selectors of a base model, requested since `requested_since` if that is given."""
        query = TARGETS.where(selectors.c.base_fingerprint == base_fingerprint)
        if requested_since is not None:
            query = query.where(selector_targets.c.asked_at >= requested_since)
        rows = self._connection.execute(query.order_by(selectors.c.sequence))
        return [(PoolSpec.model_validate(pool), SPEC.validate_python(spec)) for pool, spec in rows]

    # --- requests -------------------------------------------------------------------------------

    def record_request(self, pool_id: str, spec_digest: str, moment: datetime) -> None:
        """Record when a pool and spec was last requested."""
        self._update(selector_targets, *_target(pool_id, spec_digest), asked_at=moment)

    def unrequested_since(self, since: datetime) -> builtins.list[SelectorRow]:
        """The selectors that serve a pool and were not requested since then."""
        return self._all(SERVING.where(selector_targets.c.asked_at < since).order_by(selectors.c.sequence))

    def stop_serving(self, row: SelectorRow, *, unless_requested_since: datetime) -> None:
        """Have a selector serve its pool no longer, unless it was requested meanwhile; the next request refits it."""
        is_unrequested = selector_targets.c.asked_at < unless_requested_since
        self._delete(selector_targets, *_target(row.pool_id, row.spec_digest), is_unrequested)

    def asked_at(self, ids: Sequence[str]) -> dict[str, datetime]:
        """The moment of the last request by selector id, of those that serve a pool."""
        query = select(selectors.c.id, selector_targets.c.asked_at).join(selector_targets, SERVES)
        return {row.id: row.asked_at for row in self._connection.execute(query.where(selectors.c.id.in_(ids)))}


def _visible(visible: Namespaces) -> ColumnElement[bool]:
    """The condition that every namespace of the pool is visible."""
    if visible is None:
        return true()
    return ~exists().where(
        selector_namespaces.c.selector == selectors.c.sequence, selector_namespaces.c.namespace.not_in(visible)
    )


def _target(pool_id: str, spec_digest: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return selector_targets.c.pool_id == pool_id, selector_targets.c.spec_digest == spec_digest
