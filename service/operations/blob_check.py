"""What a start does about the blobs: they have to be the database's own, and what it does not name is set aside.

Called by the runtime. Nothing is deleted that an acknowledged push may own: a database that was lost, or an older copy
that was put back, names fewer blobs than there are (docs/how-to/back-up-and-restore.md).
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from datetime import date

from registry.blobs import BlobStore, ServerBlobs, SetAsideBlobs
from registry.catalogue.database import Database
from registry.catalogue.jobs import COOKS
from registry.errors import Unavailable
from registry.spec import StoreMark

REQUEST = b'{"request": '
"""What the request of a cook begins with: text of a novel domain, which is not kept (`service.jobs.cook`)."""
LATEST = 1000
PAGE = "docs/how-to/back-up-and-restore.md"

log = logging.getLogger("soup.blobs")


@dataclass(frozen=True)
class Found:
    """How many blobs came back, were set aside now, are set aside in all, are requests that were deleted, are missing.

    `older` is whether the database is a copy from before the blobs' last start.
    """

    older: bool
    back: int
    aside: int
    kept: int
    deleted: int
    missing: int


def check_blobs(database: Database, blobs: ServerBlobs, *, alone: bool, accept: bool, today: date) -> Found:
    """See that database and blobs belong together, and settle where they differ; both then have the next mark.

    `alone` is whether nobody else uses either: else bytes without a row may be on their way to one. With `accept` the
    database is taken as it is. Raises Unavailable where it is another than the blobs were stored with.
    """
    aside = blobs.set_aside
    marked = aside.mark()  # before the database's, which is always advanced first
    with database.read() as catalogue:
        known, named = catalogue.stores.mark(), catalogue.blobs.digests()
    there = set(blobs.digests())  # after what the database names: that was stored before
    if not accept:
        _check_belongs(known, marked, named, there, blobs)
    older = marked is not None and (
        known is None or known.store != marked.store or known.generation < marked.generation
    )
    kept = {"sha256:" + name[-64:] for name in aside.names()}
    back = {digest for digest in sorted((named - there) & kept) if aside.restore(digest)}
    ended = delete_ended_requests(database, blobs, there)
    unnamed, requests = _unnamed(database, (there | back) - ended, named) if alone else [], 0
    for digest in unnamed:
        if not older and _is_request(blobs.read_prefix(digest, len(REQUEST))):
            blobs.delete(digest)
            requests += 1
        else:
            aside.put(digest, today)
    moved = len(unnamed) - requests
    for name in list(aside.names()) if alone and not older else []:
        if _is_request(aside.read_prefix(name, len(REQUEST))):
            aside.remove(name)
            requests += 1
    _advance(database, aside, known, marked)
    found = Found(
        older, len(back), moved, sum(1 for _ in aside.names()), len(ended) + requests, len(named - there - back),
    )  # fmt: skip
    _tell(found, blobs)
    return found


def _check_belongs(
    known: StoreMark | None, marked: StoreMark | None, named: set[str], there: set[str], blobs: ServerBlobs
) -> None:
    if known is not None and marked is not None and known.store != marked.store:
        raise _another(blobs)
    if known is None and marked is not None and (blobs.is_shared or (named and not named & there)):
        raise _another(blobs)
    if known is not None and marked is None and named and not named & there:
        raise Unavailable(
            f"The database names {len(named)} blobs and none is in {blobs.location}, which carries no mark: mount it, "
            f"or check SOUP_DATA, SOUP_BLOBS and SOUP_BLOBS_URL ({PAGE}). SOUP_ACCEPT_DATABASE=1 starts over it as it "
            "is.",
            param="blobs",
        )
    if named or (known is not None and marked is not None):
        return
    count = sum(not _is_request(blobs.read_prefix(digest, len(REQUEST))) for digest in there)
    if count:
        raise Unavailable(
            f"The database is new and names no blob, but {blobs.location} holds {count}: put back a copy of the "
            f"database ({PAGE}). SOUP_ACCEPT_DATABASE=1 starts with the new one, and sets the blobs aside.",
            param="database_url",
        )


def _another(blobs: ServerBlobs) -> Unavailable:
    return Unavailable(
        f"The blobs in {blobs.location} belong to another database than this one: check SOUP_DATA, SOUP_BLOBS, "
        f"SOUP_BLOBS_URL and SOUP_DATABASE_URL ({PAGE}). SOUP_ACCEPT_DATABASE=1 takes this one, and sets aside what it "
        "does not name.",
        param="database_url",
    )


def _unnamed(database: Database, there: set[str], named: set[str]) -> list[str]:
    """Blobs that are there and not `named` by a transaction, nor noted to go, and that no waiting cook is asked by.

    They are what a crash left between storing bytes and committing the row that names them, requests of cooks that have
    ended, and whatever a database that is an older copy does not know.
    """
    with database.read() as catalogue:
        known = (
            named
            | catalogue.removals.pending()
            | {job.arguments["request"] for kind in COOKS for job in catalogue.jobs.active(kind)}
        )
    return sorted(there - known)


def _is_request(beginning: bytes) -> bool:
    return beginning == REQUEST


def delete_ended_requests(database: Database, blobs: BlobStore, there: set[str]) -> set[str]:
    """Delete what the latest cook jobs that ended were asked for, where a process died before it did; returns which.

    Texts of a novel domain are not kept.
    """
    with database.read() as catalogue:
        jobs = [job for kind in COOKS for job in catalogue.jobs.list(None, kind=kind, limit=LATEST).rows]
    ended = [job.arguments["request"] for job in jobs if job.state not in ("queued", "running")]
    left = there & set(ended)
    blobs.delete_all(sorted(left))
    return left


def _advance(database: Database, aside: SetAsideBlobs, known: StoreMark | None, marked: StoreMark | None) -> None:
    """Give both the next mark, the database first: a folder that is behind says nothing against its database."""
    store = known.store if known is not None else uuid.uuid4().hex if marked is None else marked.store
    with database.write() as catalogue:
        mark = catalogue.stores.advance(store, after=0 if marked is None else marked.generation)
    aside.set_mark(mark)


def _tell(found: Found, blobs: ServerBlobs) -> None:
    """What was done, and what should be looked at."""
    if found.older:
        log.warning("the database is an older copy than its blobs: it does not know what came later (%s)", PAGE)
    if found.back:
        log.warning("%d blobs that the database names were set aside earlier, and are back", found.back)
    if found.kept:
        log.warning(
            "%d blobs that the database does not name are set aside in %s, %d of them now: delete them there once "
            "the database is known to be the right one (%s)", found.kept, blobs.set_aside.location, found.aside, PAGE,
        )  # fmt: skip
    if found.missing:
        log.warning(
            "%d blobs that the database names are not in %s: SOUP_BLOBS (SOUP_BLOBS_URL) must be what all servers of "
            "this database share, or a copy of it has to be put back (%s)", found.missing, blobs.location, PAGE,
        )  # fmt: skip
    if found.deleted:
        log.info("%d requests of cooks that ended are deleted", found.deleted)
