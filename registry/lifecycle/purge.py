"""The purge verb: removes a version of an adapter or soup for good, with the text of its sample.

Called by the purge route. Rows and audit entries are removed in one transaction; files after it, by this call or the
next collection.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from registry.catalogue.rows import AdapterRow, PooledRow
from registry.context import Caller, Registry
from registry.errors import Busy, Conflict, Unavailable
from registry.select.pools import enqueue_refits
from registry.stored.files import remove_files

log = logging.getLogger("soup.collect")


@dataclass(frozen=True)
class Purged:
    """The purged row, the number of blobs removed with their bytes, and the live soups that depend on them.

    `not_rebuildable` soups had it as an ingredient, or were mixed by statistics of its sample; `tuned` soups were
    trained on its sample. Both are of all namespaces: callers must filter them before they show them.
    """

    row: AdapterRow
    blobs: int
    bytes: int
    not_rebuildable: tuple[PooledRow, ...]
    tuned: tuple[PooledRow, ...]


def purge(registry: Registry, caller: Caller, adapter_id: int) -> Purged:
    """Remove a version, retired or live; pools of a live one are fitted again.

    Blobs stay that another version, a soup or a selector uses, or another namespace has uploaded. Raises Conflict where
    an alias points at the version, Retired where it was already purged.
    """
    with registry.database.write() as catalogue:
        row = catalogue.adapters.get(adapter_id)
        aliases = catalogue.removals.aliases_of(row)
        if aliases:
            raise Conflict(f"The alias {aliases[0]!r} points at {row.ref}: move or remove it first.", param="name")
        if row.retired_at is None:
            row = catalogue.adapters.retire(row.id)
            enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
        sample = None if row.sample is None else row.sample.digest
        blobs = catalogue.removals.purge(row)
        lost_statistics = catalogue.statistics.missing_blobs(blobs)
        catalogue.removals.release(row.namespace, blobs)
        caller.audit(catalogue, "adapter.purge", row.ref, digest=row.digest, sample=sample)
        moment = datetime.now(UTC)
        unreferenced = catalogue.removals.unreferenced(blobs)
        size = catalogue.removals.forget(unreferenced, moment)
        if catalogue.adapters.has_digest(row.digest):
            soups = catalogue.soups.mixed_by(lost_statistics)
        else:
            soups = catalogue.soups.children(row.digest, None)
        tuned = [] if sample is None else catalogue.adapters.learnt_from(sample)
    try:
        remove_files(registry, moment)
    except (Busy, Unavailable) as error:
        log.warning("files of %s go with the next collection: %s", row.ref, error.message)
    return Purged(row, len(unreferenced), size, tuple(soups), tuple(tuned))
