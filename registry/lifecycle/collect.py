"""The collect verb: what nobody has used or named for some time goes, in steps that can be taken back until the last.

Called by the server's upkeep, and by the route for an admin who does not wait for that. Unnamed soups that nobody uses
are retired; those that have been retired for the grace period are removed, as are selectors that no longer serve and
blobs that nothing is made of. Files go some time after their rows: until then storing the same bytes again brings them
back. Ended jobs, usage and entries of the audit go once they are older than the settings say, and for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from registry.catalogue.database import Catalogue
from registry.catalogue.pruning import Pruning
from registry.catalogue.rows import SelectorRow
from registry.context import Caller, Registry
from registry.progress import Progress, silent
from registry.select.pools import as_members, current_members, enqueue_refits
from registry.stored_files import remove_files

log = logging.getLogger("soup.collect")

HELD = timedelta(days=1)
"""How long a file is kept after its row, and no longer than the grace period."""
AT_ONCE = 200
"""Rows that go in one transaction: others write in between."""
ROWS = 2_000
"""The same of rows that nothing else names."""
NAMED = 100
"""Soups that are named of those retired, and of those removed."""
BY = "collection"
"""Who jobs say it was, and the audit where nobody asked for it."""


@dataclass(frozen=True)
class Collected:
    """How many unnamed soups were retired and removed, selectors and blobs removed, files removed, and their bytes.

    `expired` and `removed` are the first of those soups by name. `jobs`, `usage` and `audit` are rows too old.
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
    registry: Registry, moment: datetime, *, used: Callable[[Catalogue], set[str]], caller: Caller | None = None,
    progress: Progress = silent,
) -> Collected:  # fmt: skip
    """Take away what is due at `moment`; `used` gives blobs that jobs still need. `progress` may raise to end it.

    `caller` is who asked for it. Raises Busy or Unavailable; what was done by then stays done.
    """
    done = _collected(_Work(registry, moment, used, caller, progress))
    done = replace(done, files=remove_files(registry, moment))
    if done != Collected():
        log.info(
            "collected: %d unnamed soups retired and %d removed, %d selectors and %d blobs (%d bytes) removed, whose "
            "files go later; %d files removed; %d jobs, %d rows of usage and %d entries of the audit that were too old",
            done.retired, done.soups, done.selectors, done.blobs, done.bytes, done.files, done.jobs, done.usage,
            done.audit,
        )  # fmt: skip
    return done


def would_collect(
    registry: Registry, moment: datetime, *, used: Callable[[Catalogue], set[str]], progress: Progress = silent
) -> Collected:
    """What `collect` would take away now: all of it is done in one transaction, which is taken back."""
    found = Collected()
    try:
        with registry.database.write() as catalogue:
            found = _collected(_Work(registry, moment, used, None, progress, trial=catalogue))
            found = replace(found, files=catalogue.removals.count_due(moment))
            raise _TakenBack
    except _TakenBack:
        return found


class _TakenBack(Exception):
    """Ends a transaction without keeping what it did."""


@dataclass(frozen=True)
class _Work:
    """What a collection goes by; with `trial` all of it happens in that transaction."""

    registry: Registry
    moment: datetime
    used: Callable[[Catalogue], set[str]]
    caller: Caller | None
    progress: Progress
    trial: Catalogue | None = None

    def turn(self) -> AbstractContextManager[Catalogue]:
        """The next transaction that writes."""
        return self.registry.database.write() if self.trial is None else nullcontext(self.trial)

    def look(self) -> AbstractContextManager[Catalogue]:
        """A transaction that reads, and keeps nobody from writing."""
        return self.registry.database.read() if self.trial is None else nullcontext(self.trial)

    def audit(self, catalogue: Catalogue, action: str, subject: str, **detail: Any) -> None:
        """Record that something went, and by whom."""
        if self.caller is not None:
            self.caller.audit(catalogue, action, subject, **detail)
        else:
            catalogue.audit.record(action, subject, key_id=None, request_id=None, detail={"by": BY, **detail})


def _collected(work: _Work) -> Collected:
    """Everything but the files."""
    expired = _retire_unused(work)
    grace = work.registry.retention.grace
    found = replace(_prune(work), retired=len(expired), expired=tuple(expired[:NAMED]))
    if grace is None:
        return found
    before = work.moment - grace
    removed = _remove_retired(work, before)
    useless = _useless_selectors(work, before)
    with work.turn() as catalogue:
        for row in useless:
            catalogue.selectors.stop_serving(row, unless_asked_since=before)
        selectors = catalogue.removals.drop_selectors(before)
        catalogue.removals.drop_embeddings()
        catalogue.removals.drop_statistics()
    blobs, size = _forget_unseen(work, before, work.moment + min(grace, HELD))
    return replace(
        found, soups=len(removed), removed=tuple(removed[:NAMED]), selectors=selectors, blobs=blobs, bytes=size
    )


def _prune(work: _Work) -> Collected:
    """Take away rows that are older than their table keeps them.

    Usage stays as long as it may say that an unnamed soup is in use. Buckets of rates hold nothing after a minute, and
    are not counted.
    """
    with work.turn() as catalogue:
        catalogue.pruning.rate_buckets(ROWS)
    keep = work.registry.retention
    soups = max([keep.unnamed_soup_days, *_days_of_soups(work).values()])
    return Collected(
        jobs=_pruned(work, "job", keep.job_days, Pruning.jobs),
        usage=_pruned(work, "usage", keep.usage_days and max(keep.usage_days, soups), Pruning.usage),
        audit=_pruned(work, "audit", keep.audit_days, Pruning.audit),
    )


def _pruned(work: _Work, what: str, days: int, remove: Callable[[Pruning, datetime, int], int]) -> int:
    """Have rows of a table removed until none is too old, each time with an entry of the audit; how many."""
    count, before = 0, work.moment - timedelta(days=days)
    while days:
        work.progress(count, 0, f"removing {what} rows that are older than {days} days")
        with work.turn() as catalogue:
            gone = remove(catalogue.pruning, before, ROWS)
            if gone:
                work.audit(catalogue, f"{what}.prune", f"{gone} rows", days=days, before=before.isoformat())
        count += gone
        if gone < ROWS:
            break
    return count


def _useless_selectors(work: _Work, before: datetime) -> list[SelectorRow]:
    """The selectors that nobody asked for since then, and that would be fitted anew before they answered.

    They are of another pool than there is, and may hold what was computed from a sample that was purged since. So are
    those whose pool is empty, which cannot be fitted again.
    """
    found: list[SelectorRow] = []
    with work.look() as catalogue:
        for row in catalogue.selectors.idle(before):
            work.progress(len(found), 0, "looking at selectors that nobody asks for")
            present = as_members(current_members(catalogue, row.pool, row.encoder_digest))
            asked_at = catalogue.selectors.asked_at([row.id])[row.id]
            idle = not present or work.registry.refits.is_idle(asked_at, work.moment)
            if idle and present != row.members:
                found.append(row)
    return found


def _days_of_soups(work: _Work) -> dict[str, int]:
    """For how many days each namespace that has unnamed soups keeps them without use; 0: for good."""
    with work.look() as catalogue:
        names = catalogue.removals.soup_namespaces()
        own = {name: catalogue.namespaces.get(name).unnamed_soup_days for name in names}
    return {name: work.registry.retention.unnamed_soup_days if days is None else days for name, days in own.items()}


def _retire_unused(work: _Work) -> list[str]:
    """Retire unnamed soups that nobody used for as long as their namespace keeps them; which."""
    registry, found = work.registry, list[str]()
    for namespace, keep in _days_of_soups(work).items():
        while keep:
            since = work.moment - timedelta(days=keep)
            work.progress(len(found), 0, "retiring unnamed soups")
            with work.turn() as catalogue:
                ids = catalogue.removals.unused_soups(namespace, since, limit=AT_ONCE)
                for id in ids:
                    row = catalogue.adapters.retire(id, at=work.moment)
                    enqueue_refits(catalogue, row, created_by=BY, refits=registry.refits)
                    work.audit(catalogue, "adapter.expire", row.ref, digest=row.digest, days=keep)
                    found.append(row.ref)
            if len(ids) < AT_ONCE:
                break
    return found


def _remove_retired(work: _Work, before: datetime) -> list[str]:
    found: list[str] = []
    while True:
        work.progress(len(found), 0, "removing retired soups")
        with work.turn() as catalogue:
            ids = catalogue.removals.retired_soups(before, limit=AT_ONCE)
            for id in ids:
                row = catalogue.adapters.get(id)
                catalogue.removals.release(row.namespace, catalogue.removals.purge(row))
                work.audit(catalogue, "adapter.collect", row.ref, digest=row.digest)
                found.append(row.ref)
        if len(ids) < AT_ONCE:
            return found


def _forget_unseen(work: _Work, before: datetime, due_at: datetime) -> tuple[int, int]:
    """Take away the rows of blobs that nothing is made of, and no job needs; how many, and their bytes."""
    count = size = 0
    while True:
        work.progress(count, 0, "removing blobs")
        with work.turn() as catalogue:
            needed = work.used(catalogue)
            unseen = catalogue.removals.unseen(before, limit=AT_ONCE + len(needed))
            found = [digest for digest in unseen if digest not in needed]
            size += catalogue.removals.forget(found, due_at)
            if found:
                work.audit(catalogue, "blob.collect", f"{len(found)} blobs", digests=found)
        count += len(found)
        if len(found) < AT_ONCE:
            return count, size
