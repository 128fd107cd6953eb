"""Checks every stored blob against its database and its digest, and names the users of damaged ones.

Called by `soup check`, with the server running or stopped: nothing is written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from registry.blobs import ServerBlobs
from registry.catalogue.database import Database
from registry.errors import Unavailable
from registry.progress import Progress
from registry.spec import StoreMark

Problem = Literal["missing", "damaged", "unreadable"]


@dataclass(frozen=True)
class Unsound:
    """A blob that is missing, damaged (other bytes or another size), or unreadable."""

    digest: str
    problem: Problem
    named_by: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """The number of checked blobs, the number of bytes read, and the missing or damaged ones."""

    blobs: int
    bytes: int
    unsound: tuple[Unsound, ...]

    def count(self, problem: str) -> int:
        """The number of blobs with this problem."""
        return sum(blob.problem == problem for blob in self.unsound)


def check_hashes(database: Database, blobs: ServerBlobs, *, rate: int | None, progress: Progress) -> Checked:
    """Check every blob that the database names or the folder has.

    With a `rate` all their bytes are read and hashed, at most `rate` bytes per second; else only sizes are compared.

    Raises Unavailable if the folder is not the one of the database: then every blob would be missing.
    """
    with database.read() as catalogue:
        mark, sizes = catalogue.stores.mark(), catalogue.blobs.sizes()
    if mark is not None:
        check_same_store(mark, blobs)
    digests = sorted({*sizes, *blobs.digests()})
    problems: dict[str, Problem] = {}
    read = 0
    for number, digest in enumerate(digests):
        progress(number, len(digests), f"{len(problems)} not whole, {read} bytes read")
        try:
            size, is_whole = _look(blobs, digest, rate)
        except FileNotFoundError:
            problems[digest] = "missing"
        except OSError:
            problems[digest] = "unreadable"
        else:
            read += 0 if rate is None else size
            if not is_whole or size != sizes.get(digest, size):
                problems[digest] = "damaged"
    progress(len(digests), len(digests), f"{len(problems)} not whole, {read} bytes read")
    return Checked(len(digests), read, unsound_blobs(database, problems))


def unsound_blobs(database: Database, problems: Mapping[str, Problem]) -> tuple[Unsound, ...]:
    """Return the blobs with problems, without missing ones that the database no longer names."""
    with database.read() as catalogue:
        named = catalogue.blobs.digests()
        return tuple(
            Unsound(digest, problem, tuple(catalogue.blobs.references(digest)))
            for digest, problem in problems.items()
            if problem != "missing" or digest in named
        )


def check_same_store(mark: StoreMark, blobs: ServerBlobs) -> None:
    """Raise Unavailable unless the folder belongs to the database with this mark."""
    blob_mark = blobs.set_aside.mark()
    if blob_mark is None or blob_mark.store != mark.store:
        raise Unavailable(
            f"{blobs.location} is not the place of this database's blobs (its store.json is missing or another's): "
            "mount it, or check SOUP_DATA, SOUP_BLOBS, SOUP_BLOBS_URL and SOUP_DATABASE_URL.",
            param="blobs",
        )


def _look(blobs: ServerBlobs, digest: str, rate: int | None) -> tuple[int, bool]:
    """The number of stored bytes, and True if they match the digest; they are only read if a rate is given."""
    if rate is None:
        return blobs.stored_size(digest), True
    sha, size, free_at = hashlib.sha256(), 0, time.monotonic()
    for chunk in blobs.chunks(digest, fresh=True):  # what the disk holds, not what memory remembers of it
        sha.update(chunk)
        size += len(chunk)
        now = time.monotonic()
        free_at = max(free_at + len(chunk) / rate, now)  # a slow disk is not made up for
        time.sleep(free_at - now)
    return size, f"sha256:{sha.hexdigest()}" == digest
