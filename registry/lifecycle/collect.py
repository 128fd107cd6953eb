"""The collect verb: retires and removes what has been unused for some time.

Called periodically by the server, and by a route for admins. Unused unnamed soups are retired, and removed after the
grace period, as are selectors that no longer serve and unreferenced blobs. Files are removed some time after their
rows: until then storing the same bytes again restores them. Ended jobs, usage and audit entries are removed at the age
that the settings give: `context.Retention`, which `runtime.retention_of` makes of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from registry.catalogue.database import Catalogue
from registry.catalogue.pruning import Pruning
from registry.catalogue.rows import SelectorRow
from registry.context import Caller, Registry
from registry.progress import Progress, silent
from registry.select.pools import as_members, enqueue_refits, members_of
from registry.stored.files import remove_files

log = logging.getLogger("soup.collect")

FILE_DELAY = timedelta(days=1)
"""How long a file stays after its row is removed, at most the grace period."""
BATCH = 200
"""Rows that are removed in one transaction, so that others can write in between."""
PRUNE_BATCH = 2_000
"""Rows of jobs, usage, audit and rate buckets that are removed in one transaction."""
MAX_NAMED = 100
"""The most retired, and the most removed, soups whose refs are reported."""
ACTOR = "collection"
"""The actor recorded in jobs, and in the audit where there is no caller."""


@dataclass(frozen=True)
class Collected:
    """Numbers of unnamed soups retired and removed, of selectors, blobs (with their bytes) and files removed.

    `expired` and `removed` are refs of the first of these soups. `jobs`, `usage` and `audit` count rows that were too
    old.
    """

    retired: int = 0
    soups: int = 0
    selectors: int = 0
    blobs: int = 0
    bytes: int = 0
    files: int = 0
    jobs: int = 0
    usage: int = 0
    audit: int = 0
    expired: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def collect(
    registry: Registry,
    moment: datetime,
    *,
    used: Callable[[Catalogue], set[str]],
    caller: Caller | None = None,
    progress: Progress = silent,
) -> Collected:
    """Remove what is due at `moment`; `used` returns the blobs that jobs still need.

    `caller` is recorded in the audit. Raises Busy or Unavailable, and what `progress` raises; what was done before
    stays done.
    """
    collected = _Collection(registry, moment, used, caller, progress).run()
    collected = replace(collected, files=remove_files(registry, moment))
    if collected != Collected():
        log.info(
            "collected: %d unnamed soups retired and %d removed, %d selectors and %d blobs (%d bytes) removed, whose "
            "files go later; %d files removed; %d jobs, %d rows of usage and %d entries of the audit that were too old",
            collected.retired,
            collected.soups,
            collected.selectors,
            collected.blobs,
            collected.bytes,
            collected.files,
            collected.jobs,
            collected.usage,
            collected.audit,
        )
    return collected


def would_collect(registry: Registry, moment: datetime, *, used: Callable[[Catalogue], set[str]]) -> Collected:
    """The result that `collect` would have now, without the selectors whose pools would change by it.

    Other writes wait only for removals after the grace period, which are tried in a transaction that is rolled back.
    """
    collection = _Collection(registry, moment, used, None, silent)
    collected, stale = collection.count(), collection.stale_selectors()
    try:
        with registry.database.write() as catalogue:
            collected = replace(collection, trial=catalogue).remove(collected, stale)
            collected = replace(collected, files=catalogue.removals.count_due(moment))
            raise _RolledBack
    except _RolledBack:
        return collected


class _RolledBack(Exception):
    """Rolls back a transaction."""


@dataclass(frozen=True)
class _Collection:
    """One collection; with `trial`, `remove` happens in that transaction alone."""

    registry: Registry
    moment: datetime
    used: Callable[[Catalogue], set[str]]
    caller: Caller | None
    progress: Progress
    trial: Catalogue | None = None

    def write(self) -> AbstractContextManager[Catalogue]:
        """A transaction that writes."""
        return self.registry.database.write() if self.trial is None else nullcontext(self.trial)

    def audit(self, catalogue: Catalogue, action: str, subject: str, **detail: Any) -> None:
        """Record a removal, by the caller or the periodic collection."""
        if self.caller is not None:
            self.caller.audit(catalogue, action, subject, **detail)
        else:
            catalogue.audit.record(action, subject, key_id=None, request_id=None, detail={"by": ACTOR, **detail})

    def run(self) -> Collected:
        """Retire and remove everything but files."""
        expired = self._retire_unused_soups()
        collected = replace(self._prune(), retired=len(expired), expired=tuple(expired[:MAX_NAMED]))
        return self.remove(collected, self.stale_selectors())

    def count(self) -> Collected:
        """Count the soups that `run` would retire, and the rows that are too old."""
        soup_days, row_days = self._soup_days(), self._row_days()
        with self.registry.database.read() as catalogue:
            expired = [
                id
                for namespace, days in soup_days.items()
                if days
                for id in catalogue.removals.unused_soups(namespace, self._cutoff(days))
            ]
            named = tuple(catalogue.adapters.get(id).ref for id in expired[:MAX_NAMED])
            jobs, usage, audit = (
                catalogue.pruning.count(name, self._cutoff(days)) if days else 0 for name, days in row_days.items()
            )
        return Collected(retired=len(expired), expired=named, jobs=jobs, usage=usage, audit=audit)

    def remove(self, collected: Collected, stale: Sequence[SelectorRow]) -> Collected:
        """Remove what has been retired or unused for the grace period, and `stale` selectors; add it to `collected`."""
        grace = self.registry.retention.grace
        if grace is None:
            return collected
        cutoff = self.moment - grace
        removed = self._remove_retired_soups(cutoff)
        with self.write() as catalogue:
            for row in stale:
                catalogue.selectors.stop_serving(row, unless_requested_since=cutoff)
            selectors = catalogue.removals.drop_selectors(cutoff)
            catalogue.removals.drop_embeddings()
            catalogue.removals.drop_statistics()
        blobs, size = self._forget_unseen_blobs(cutoff, self.moment + min(grace, FILE_DELAY))
        return replace(
            collected,
            soups=len(removed),
            removed=tuple(removed[:MAX_NAMED]),
            selectors=selectors,
            blobs=blobs,
            bytes=size,
        )

    def _prune(self) -> Collected:
        """Remove rows of jobs, usage, audit and rate buckets that are too old.

        Rate buckets are not counted: they are empty after a minute.
        """
        with self.write() as catalogue:
            catalogue.pruning.rate_buckets(PRUNE_BATCH)
        days = self._row_days()
        return Collected(
            jobs=self._prune_table("job", days["jobs"], Pruning.jobs),
            usage=self._prune_table("usage", days["usage"], Pruning.usage),
            audit=self._prune_table("audit", days["audit"], Pruning.audit),
        )

    def _row_days(self) -> dict[str, int]:
        """Days after which rows are removed (0: never), by table.

        Usage stays as long as it may show that an unnamed soup is in use.
        """
        retention = self.registry.retention
        soup_days = max([retention.unnamed_soup_days, *self._soup_days().values()])
        usage_days = max(retention.usage_days, soup_days) if retention.usage_days else 0
        return {"jobs": retention.job_days, "usage": usage_days, "audit": retention.audit_days}

    def _cutoff(self, days: int) -> datetime:
        return self.moment - timedelta(days=days)

    def _prune_table(self, table: str, days: int, remove: Callable[[Pruning, datetime, int], int]) -> int:
        """Remove rows older than `days` (0: none) in batches, each with an audit entry; returns their number."""
        count, cutoff = 0, self._cutoff(days)
        while days:
            self.progress(count, 0, f"removing {table} rows that are older than {days} days")
            with self.write() as catalogue:
                removed = remove(catalogue.pruning, cutoff, PRUNE_BATCH)
                if removed:
                    self.audit(catalogue, f"{table}.prune", f"{removed} rows", days=days, before=cutoff.isoformat())
            count += removed
            if removed < PRUNE_BATCH:
                break
        return count

    def stale_selectors(self) -> list[SelectorRow]:
        """Selectors unused for the grace period whose pool has changed so that they would be fitted again before use.

        They may contain data of samples that were purged since. Included are those whose pool is empty, which cannot be
        fitted again.
        """
        stale: list[SelectorRow] = []
        grace = self.registry.retention.grace
        if grace is None:
            return stale
        with self.registry.database.read() as catalogue:
            for row in catalogue.selectors.unrequested_since(self.moment - grace):
                self.progress(len(stale), 0, "looking at selectors that nobody asks for")
                members = as_members(members_of(catalogue, row.pool, row.encoder_digest).rows)
                used_at = catalogue.selectors.asked_at([row.id])[row.id]
                may_stop = not members or self.registry.refits.is_idle(used_at, self.moment)
                if may_stop and members != row.members:
                    stale.append(row)
        return stale

    def _soup_days(self) -> dict[str, int]:
        """Days without use after which unnamed soups expire (0: never), by namespace that has some."""
        default = self.registry.retention.unnamed_soup_days
        soup_days = {}
        with self.registry.database.read() as catalogue:
            for namespace in catalogue.removals.soup_namespaces():
                days = catalogue.namespaces.get(namespace).unnamed_soup_days
                soup_days[namespace] = default if days is None else days
        return soup_days

    def _retire_unused_soups(self) -> list[str]:
        """Retire unnamed soups that have been unused for the days of their namespace; returns their refs."""
        retired: list[str] = []
        for namespace, days in self._soup_days().items():
            cutoff = self._cutoff(days)
            while days:
                self.progress(len(retired), 0, "retiring unnamed soups")
                with self.write() as catalogue:
                    ids = catalogue.removals.unused_soups(namespace, cutoff, limit=BATCH)
                    for id in ids:
                        row = catalogue.adapters.retire(id, at=self.moment)
                        enqueue_refits(catalogue, row, created_by=ACTOR, refits=self.registry.refits)
                        self.audit(catalogue, "adapter.expire", row.ref, digest=row.digest, days=days)
                        retired.append(row.ref)
                if len(ids) < BATCH:
                    break
        return retired

    def _remove_retired_soups(self, cutoff: datetime) -> list[str]:
        """Remove unnamed soups that were retired before `cutoff`; returns their refs."""
        removed: list[str] = []
        while True:
            self.progress(len(removed), 0, "removing retired soups")
            with self.write() as catalogue:
                ids = catalogue.removals.retired_soups(cutoff, limit=BATCH)
                for id in ids:
                    row = catalogue.adapters.get(id)
                    catalogue.removals.release(row.namespace, catalogue.removals.purge(row))
                    self.audit(catalogue, "adapter.collect", row.ref, digest=row.digest)
                    removed.append(row.ref)
            if len(ids) < BATCH:
                return removed

    def _forget_unseen_blobs(self, cutoff: datetime, due_at: datetime) -> tuple[int, int]:
        """Remove the rows of unreferenced blobs that no job needs; returns their number and bytes."""
        count = size = 0
        while True:
            self.progress(count, 0, "removing blobs")
            with self.write() as catalogue:
                used = self.used(catalogue)
                unseen = catalogue.removals.unseen(cutoff, limit=BATCH + len(used))
                unused = [digest for digest in unseen if digest not in used]
                size += catalogue.removals.forget(unused, due_at)
                if unused:
                    self.audit(catalogue, "blob.collect", f"{len(unused)} blobs", digests=unused)
            count += len(unused)
            if len(unused) < BATCH:
                return count, size
