"""Check at a start that the blobs are the database's own, and set aside those that it does not name.

Called by the runtime. No blob is deleted that an acknowledged push may own. A lost database, or a restored older copy,
names fewer blobs than are stored (docs/how-to/repair-a-server.md#a-refused-start).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from registry.blobs import BlobStore, ServerBlobs, SetAsideBlobs
from registry.catalogue.database import Database
from registry.errors import Unavailable
from registry.names import COOKS
from registry.spec import StoreMark

REQUEST = b'{"request": {"'
"""The beginning of a stored cook request, which holds text of a novel domain and is not kept (`service.jobs.cook`).

JSON lines of training data may begin with a text under this name, and are kept.
"""
LATEST = 1000
PAGE = "docs/how-to/repair-a-server.md#a-refused-start"

log = logging.getLogger("soup.blobs")


@dataclass(frozen=True)
class BlobReport:
    """Counts of blobs: restored, set aside by this start, set aside in total, deleted (requests of cooks), missing.

    `older` is True if the database is a copy from before the blobs' last start.
    """

    older: bool
    restored: int
    moved: int
    set_aside: int
    deleted: int
    missing: int


def check_blobs(database: Database, blobs: ServerBlobs, *, alone: bool, accept: bool, today: date) -> BlobReport:
    """Check that database and blobs belong together, and repair differences; both then have the next mark.

    `alone` is True if no other process uses them; otherwise bytes without a row may belong to a running push. With
    `accept` any database is accepted. Raises Unavailable if the blobs were stored with another database.
    """
    set_aside = blobs.set_aside
    blob_mark = set_aside.mark()  # before the database's, which is always advanced first
    with database.read() as catalogue:
        mark, named = catalogue.stores.mark(), catalogue.blobs.digests()
        waiting = {job.arguments["request"] for kind in COOKS for job in catalogue.jobs.active(kind)}
    stored = set(blobs.digests())  # after what the database names: that was stored before
    if not accept:
        _check_belongs(mark, blob_mark, named, stored, blobs)
    older = blob_mark is not None and (
        mark is None or mark.store != blob_mark.store or mark.generation < blob_mark.generation
    )
    if older:
        with database.write() as catalogue:
            catalogue.removals.cancel_all()
    set_aside_digests = {"sha256:" + name[-64:] for name in set_aside.names()}
    deleted = delete_ended_requests(database, blobs, stored | set_aside_digests)
    lacking = ((named | waiting) - stored) & set_aside_digests
    restored = {digest for digest in sorted(lacking) if set_aside.restore(digest)}
    unnamed, requests = _unnamed(database, (stored | restored) - deleted, named | waiting) if alone else [], 0
    for digest in unnamed:
        if not older and _is_request(blobs.read_prefix(digest, len(REQUEST))):
            blobs.delete(digest)
            requests += 1
        else:
            set_aside.put(digest, today)
    _advance(database, set_aside, mark, blob_mark)
    report = BlobReport(
        older=older,
        restored=len(restored),
        moved=len(unnamed) - requests,
        set_aside=sum(1 for _ in set_aside.names()),
        deleted=len(deleted) + requests,
        missing=len(named - stored - restored),
    )
    _log_report(report, blobs)
    return report


def _check_belongs(
    mark: StoreMark | None, blob_mark: StoreMark | None, named: set[str], stored: set[str], blobs: ServerBlobs
) -> None:
    if mark is not None and blob_mark is not None and mark.store != blob_mark.store:
        raise _another(blobs)
    if mark is None and blob_mark is not None and (blobs.is_shared or (named and not named & stored)):
        raise _another(blobs)
    if mark is not None and blob_mark is None and named and not named & stored:
        raise Unavailable(
            f"The database names {len(named)} blobs and none is in {blobs.location}, which carries no mark: mount it, "
            f"or check SOUP_DATA, SOUP_BLOBS and SOUP_BLOBS_URL ({PAGE}). SOUP_ACCEPT_DATABASE=1 starts "
            "anyway, and those blobs stay missing.",
            param="blobs",
        )
    if named or (mark is not None and blob_mark is not None):
        return
    count = sum(not _is_request(blobs.read_prefix(digest, len(REQUEST))) for digest in stored)
    if count:
        raise Unavailable(
            f"The database is new and names no blob, but {blobs.location} holds {count}: restore a copy of "
            f"the database ({PAGE}). SOUP_ACCEPT_DATABASE=1 starts with the new database; a server on SQLite "
            "without SOUP_BLOBS sets the blobs aside.",
            param="database_url",
        )


def _another(blobs: ServerBlobs) -> Unavailable:
    return Unavailable(
        f"The blobs in {blobs.location} belong to another database than this one: check SOUP_DATA, SOUP_BLOBS, "
        f"SOUP_BLOBS_URL and SOUP_DATABASE_URL ({PAGE}). SOUP_ACCEPT_DATABASE=1 accepts it; a server on SQLite "
        "without SOUP_BLOBS sets aside blobs that it does not name.",
        param="database_url",
    )


def _unnamed(database: Database, stored: set[str], named: set[str]) -> list[str]:
    """Stored blobs that are not `named` by a transaction or a waiting cook, and not scheduled for removal.

    They come from a crash between storing bytes and committing their row, from requests of ended cooks, or from a
    database that was replaced by an older copy.
    """
    with database.read() as catalogue:
        referenced = named | catalogue.removals.pending()
    return sorted(stored - referenced)


def _is_request(beginning: bytes) -> bool:
    return beginning == REQUEST


def delete_ended_requests(database: Database, blobs: BlobStore, stored: Iterable[str]) -> set[str]:
    """Delete the requests of the latest ended cook jobs that are in `stored`, also set-aside copies, and return them.

    Texts of a novel domain are not kept, also if the process died, or the store was away, when their job ended. Called
    at a start, and by the runner of jobs with each collection.
    """
    with database.read() as catalogue:
        jobs = [job for kind in COOKS for job in catalogue.jobs.list(None, kind=kind, limit=LATEST).rows]
    ended = [job.arguments["request"] for job in jobs if job.state not in ("queued", "running")]
    undeleted = set(ended).intersection(stored)
    blobs.delete_all(sorted(undeleted))
    return undeleted


def _advance(
    database: Database, set_aside: SetAsideBlobs, mark_before: StoreMark | None, blob_mark: StoreMark | None
) -> None:
    """Give both the next mark, the database first: an older mark of the folder is no reason to refuse its database."""
    store = mark_before.store if mark_before is not None else uuid.uuid4().hex if blob_mark is None else blob_mark.store
    with database.write() as catalogue:
        mark = catalogue.stores.advance(store, after=0 if blob_mark is None else blob_mark.generation)
    set_aside.set_mark(mark)


def _log_report(report: BlobReport, blobs: ServerBlobs) -> None:
    """Log the actions, and the problems for an operator."""
    if report.older:
        log.warning("the database is an older copy than its blobs: it does not know what came later (%s)", PAGE)
    if report.restored:
        log.warning("%d blobs that the database names were set aside earlier, and are back", report.restored)
    if report.set_aside:
        log.warning(
            "%d blobs that the database does not name are set aside in %s, %d of them now: delete them there once "
            "the database is known to be the right one (%s)",
            report.set_aside,
            blobs.set_aside.location,
            report.moved,
            PAGE,
        )
    if report.missing:
        log.warning(
            "%d blobs that the database names are not in %s: SOUP_BLOBS (SOUP_BLOBS_URL) must be what all servers of "
            "this database share, or a copy of it has to be put back (%s)",
            report.missing,
            blobs.location,
            PAGE,
        )
    if report.deleted:
        log.info("%d requests of cooks that ended are deleted", report.deleted)
