"""The purge verb: versions of an adapter or soup are removed for good, with the text of their samples.

Called by the purge route. Rows and audit entries go in one transaction; the files after it, by this call or, where it
ends before, by the next collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow
from registry.errors import Conflict
from registry.pools import enqueue_refits
from registry.registry import Caller, Registry
from registry.stored_bytes import remove_files


@dataclass(frozen=True)
class Purged:
    """What was removed, and what is left that was made of it.

    Of `not_rebuildable` soups an ingredient is nowhere any more; `tuned` soups have learnt from a sample that was
    purged. Both are live, and of all namespaces: who tells a caller leaves out what that does not see.
    """

    versions: tuple[AdapterRow, ...]
    blobs: int
    bytes: int
    not_rebuildable: tuple[AdapterRow, ...]
    tuned: tuple[AdapterRow, ...]


def purge(registry: Registry, caller: Caller, rows: Sequence[AdapterRow]) -> Purged:
    """Remove versions, retired or live; pools that held a live one are fitted again.

    A blob stays where another version, a soup or a selector is made of it, or another namespace has uploaded it.
    Raises Conflict where an alias points at one of them, Retired where one was purged meanwhile.
    """
    with registry.database.write() as catalogue:
        named: set[str] = set()
        for row in rows:
            _check_no_alias(catalogue, row)
            catalogue.adapters.get(row.id)
            if row.retired_at is None:
                row = catalogue.adapters.retire(row.id)
                enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
            blobs = catalogue.removals.purge(row)
            catalogue.removals.release(row.namespace, blobs)
            named.update(blobs)
            caller.audit(catalogue, "adapter.purge", row.ref, digest=row.digest, sample=_sample(row))
        moment = datetime.now(UTC)
        gone = catalogue.removals.unreferenced(named)
        size = catalogue.removals.forget(gone, moment)
        digests = dict.fromkeys(row.digest for row in rows if not catalogue.adapters.has_digest(row.digest))
        soups = [soup for digest in digests for soup in catalogue.soups.children(digest, None)]
        samples = dict.fromkeys(filter(None, map(_sample, rows)))
        tuned = [soup for digest in samples for soup in catalogue.adapters.tuned_on(digest)]
    remove_files(registry, moment)
    return Purged(tuple(rows), len(gone), size, _once(soups), _once(tuned))


def _check_no_alias(catalogue: Catalogue, row: AdapterRow) -> None:
    found = catalogue.removals.aliases_of(row)
    if found:
        raise Conflict(f"The alias {found[0]!r} points at {row.ref}: move or remove it first.", param="name")


def _sample(row: AdapterRow) -> str | None:
    return None if row.sample is None else row.sample.digest


def _once(rows: Sequence[AdapterRow]) -> tuple[AdapterRow, ...]:
    return tuple({row.id: row for row in rows}.values())
