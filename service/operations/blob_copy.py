"""Copies every blob of a server into another store, which the server can then use; with the server running or stopped.

Called by `soup blobs copy`. Blobs that the target has are not sent again. So a run continues an interrupted one, and a
later run copies only newer blobs. It also removes those that the server has removed since, as by a purge.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from registry.blobs import ServerBlobs
from registry.catalogue.database import Database
from registry.errors import Conflict, Unavailable
from registry.progress import Progress
from service.operations import storage
from service.operations.backup import copy_blobs
from service.operations.blob_hashes import Unsound, check_same_store, unsound_blobs


@dataclass(frozen=True)
class Copied:
    """The number of blobs, the numbers that were new to the other store and removed from it, and the missing or damaged
    ones of the source.
    """

    blobs: int
    new: int
    removed: int
    unsound: tuple[Unsound, ...]


def copy_store(database: Database, source: ServerBlobs, target: ServerBlobs, *, progress: Progress) -> Copied:
    """Copy the blobs of the source, with their hashes checked, and then the mark; durable when this returns.

    Blobs of the target that neither the database nor the source has are removed, unless the source is a store that the
    server no longer uses: another start has then set a later mark elsewhere.

    Raises Conflict if the target belongs to another server. Raises Unavailable if no server has started over the
    database, the source belongs to another server, or a store cannot be used. Blobs copied before an error stay.
    """
    storage.check_serves(database)
    with database.read() as catalogue:
        mark, sizes = catalogue.stores.mark(), catalogue.blobs.sizes()
    if mark is None:
        raise Unavailable("No server has started over this database yet: there is nothing to copy.")
    check_same_store(mark, source)
    source_mark, marked = source.set_aside.mark(), target.set_aside.mark()
    if marked is not None and marked.store != mark.store:
        raise Conflict(f"{target.location} holds the blobs of another server: name another place.")
    there = set(target.digests())
    for digest in {*source.digests()} - set(sizes):
        with suppress(FileNotFoundError):  # it was the request of a cook that has ended since
            sizes[digest] = source.stored_size(digest)
    new, problems = copy_blobs(
        source,
        target,
        sizes,
        lambda digest, size: digest in there and target.stored_size(digest) == size,
        progress,
    )
    target.set_aside.set_mark(source_mark or mark)
    removed = there - set(sizes) if marked is not None and source_mark == mark else set[str]()
    target.delete_all(sorted(removed))
    return Copied(len(sizes), new, len(removed), unsound_blobs(database, problems))
