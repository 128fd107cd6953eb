"""Checks every stored blob against its database and its digest, and names the users of damaged ones.

Called by `soup check`, with the server running or stopped: nothing is written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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


class Pace:
    """Limits the bytes per second; tests replace `clock` and `sleep`."""

    def __init__(
        self, rate: int, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Any] = time.sleep
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def took(self, size: int) -> None:
        """Wait after reading this number of bytes, until more may be read."""
        now = self._clock()
        self._free_at = max(self._free_at + size / self._rate, now)
        self._sleep(self._free_at - now)


def check_hashes(database: Database, blobs: ServerBlobs, *, whole: bool, pace: Pace, progress: Progress) -> Checked:
    """Check every blob that the database names or the folder has; with `whole` read and hash all their bytes.

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
            size, hashed = _look(blobs, digest, pace if whole else None)
        except FileNotFoundError:
            problems[digest] = "missing"
        except OSError:
            problems[digest] = "unreadable"
        else:
            read += size if whole else 0
            if not hashed or size != sizes.get(digest, size):
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


def _look(blobs: ServerBlobs, digest: str, pace: Pace | None) -> tuple[int, bool]:
    """The number of stored bytes, and True if they match the digest; they are only read if a pace is given."""
    if pace is None:
        return blobs.stored_size(digest), True
    sha, size = hashlib.sha256(), 0
    for chunk in blobs.chunks(digest, fresh=True):  # what the disk holds, not what memory remembers of it
        sha.update(chunk)
        size += len(chunk)
        pace.took(len(chunk))
    return size, f"sha256:{sha.hexdigest()}" == digest
