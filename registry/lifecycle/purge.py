"""The purge verb: a version of an adapter or soup is removed for good, with the text of its sample.

Called by the purge route. Rows and audit entries go in one transaction; the files after it, by this call or, where it
ends before, by the next collection.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from registry.catalogue.rows import AdapterRow
from registry.context import Caller, Registry
from registry.errors import Busy, Conflict, Unavailable
from registry.select.pools import enqueue_refits
from registry.stored_files import remove_files

log = logging.getLogger("soup.collect")


@dataclass(frozen=True)
class Purged:
    """What was removed, and what is left that was made of it.

    Of `not_rebuildable` soups the ingredient is nowhere any more, or what it was mixed by went with its sample; `tuned`
    soups have learnt from the sample. Both are
    live, and of all namespaces: who tells a caller leaves out what that does not see.
    """

    row: AdapterRow
    blobs: int
    bytes: int
    not_rebuildable: tuple[AdapterRow, ...]
    tuned: tuple[AdapterRow, ...]


def purge(registry: Registry, caller: Caller, adapter_id: int) -> Purged:
    """Remove a version, retired or live; pools that held a live one are fitted again.

    A blob stays where another version, a soup or a selector is made of it, or another namespace has uploaded it.
    Raises Conflict where an alias points at it, Retired where it was purged meanwhile.
    """
    with registry.database.write() as catalogue:
        row = catalogue.adapters.get(adapter_id)
        found = catalogue.removals.aliases_of(row)
        if found:
            raise Conflict(f"The alias {found[0]!r} points at {row.ref}: move or remove it first.", param="name")
        if row.retired_at is None:
            row = catalogue.adapters.retire(row.id)
            enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
        sample = None if row.sample is None else row.sample.digest
        named = catalogue.removals.purge(row)
        unmeasured = catalogue.statistics.lost(named)
        catalogue.removals.release(row.namespace, named)
        caller.audit(catalogue, "adapter.purge", row.ref, digest=row.digest, sample=sample)
        moment = datetime.now(UTC)
        gone = catalogue.removals.unreferenced(named)
        size = catalogue.removals.forget(gone, moment)
        lost = not catalogue.adapters.has_digest(row.digest)
        soups = catalogue.soups.children(row.digest, None) if lost else catalogue.soups.mixed_by(unmeasured, None)
        tuned = [] if sample is None else catalogue.adapters.learnt_from(sample)
    try:
        remove_files(registry, moment)
    except (Busy, Unavailable) as error:
        log.warning("files of %s go with the next collection: %s", row.ref, error.message)
    return Purged(row, len(gone), size, tuple(soups), tuple(tuned))
