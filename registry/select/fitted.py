"""Fitted selectors: the newest of a pool and spec, its use, and loading it.

Called by the verbs and the routes that select. Pushes do not refit a selector that is long unused (idle): if its pool
has changed, it is refitted before it answers.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import SelectorRow, SelectorState
from registry.context import Registry
from registry.errors import Busy, Unavailable
from registry.select.pools import FitTarget, as_members, enqueue_fit, members_of
from registry.select.requested import RequestedSelector
from registry.selectors import SELECTORS
from registry.selectors.contract import Selector
from registry.selectors.state import load_state

USE_RESOLUTION = timedelta(hours=1)
"""The time of a selector's last use is only written where the stored one is older than this."""


def latest_selector(database: Database, requested: RequestedSelector) -> SelectorRow | None:
    """The newest fitted selector of a pool and spec; None where there is none, or it has another encoder."""
    encoder_digest = requested.encoder_digest
    with database.read() as catalogue:
        row = catalogue.selectors.latest(requested.pool.digest, requested.spec.digest)
    return row if row is not None and row.encoder_digest == encoder_digest else None


def current_selector(registry: Registry, requested: RequestedSelector) -> SelectorRow | None:
    """The fitted selector of a pool and spec, with its members; None where `current_state` is."""
    if current_state(registry, requested) is None:
        return None
    return latest_selector(registry.database, requested)


def current_state(registry: Registry, requested: RequestedSelector) -> SelectorState | None:
    """The state of a fitted selector, whose use is recorded; None where a fit is needed first.

    One is needed where the pool was never fitted, changed while its selector was idle, or the selector is damaged.
    """
    with registry.database.read() as catalogue:
        state = catalogue.selectors.latest_state(requested.pool.digest, requested.spec.digest)
    if state is None or state.encoder_digest != requested.encoder_digest:
        return None
    if not registry.blobs.is_whole(state.state_blob):
        return None
    now = datetime.now(UTC)
    if registry.refits.is_idle(state.asked_at, now):
        return state if _wake(registry, requested, now) else None
    if now - state.asked_at >= USE_RESOLUTION:
        with suppress(Busy, Unavailable), registry.database.write() as catalogue:  # the next request can record it
            catalogue.selectors.record_request(requested.pool.digest, requested.spec.digest, now)
    return state


def _wake(registry: Registry, requested: RequestedSelector, now: datetime) -> bool:
    """Record the use of an idle selector, so that pushes refit it again; False if its pool has changed meanwhile."""
    with registry.database.write() as catalogue:
        row = catalogue.selectors.latest(requested.pool.digest, requested.spec.digest)
        if row is None or _has_changed(catalogue, row):
            return False
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, now)
    return True


def _has_changed(catalogue: Catalogue, row: SelectorRow) -> bool:
    """Return True if the pool of a selector has other members than it was fitted over, and is not empty."""
    members = as_members(members_of(catalogue, row.pool, row.encoder_digest).rows)
    return bool(members) and members != row.members


def record_use(registry: Registry, row: SelectorRow, base_model: str, *, created_by: str) -> None:
    """Record the use of a selector that was just fitted, and queue a refit if its pool has changed.

    Pushes during the fit queued none where the selector was idle.
    """
    with registry.database.write() as catalogue:
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, datetime.now(UTC))
        if _has_changed(catalogue, row):
            namespace = next(iter(row.pool.namespaces or ("default",)))
            target = FitTarget(base_model, row.pool, row.spec)
            enqueue_fit(catalogue, target, namespace=namespace, created_by=created_by, delay=registry.refits.delay)


def load_selector(registry: Registry, row: SelectorRow | SelectorState) -> Selector[Any]:
    """A fitted selector, from the cache or its stored state; it is shared and immutable. Raises DamagedBlob."""

    def read() -> tuple[Selector[Any], int]:
        data = registry.blobs.read(row.state_blob)
        return SELECTORS[row.spec.kind].from_state(*load_state(data)), len(data)

    return registry.selectors.get_or_load(row.state_blob, read)
