"""Values of the stores: the mark that ties a database to its blobs, parts of uploads, and the location of blobs."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from registry.names import Digest
from registry.spec.frozen import Frozen


class StoreMark(Frozen):
    """The mark of a store, in its database and beside its blobs, which shows whether they belong together.

    `store` is drawn once for both; `generation` is incremented whenever a server starts over them. A database of a
    lower generation than its blobs is an older copy.
    """

    store: str = Field(pattern="^[0-9a-f]{32}$")
    generation: int = Field(ge=1)


class UploadPart(Frozen):
    """A part of an upload that is stored as an object: the bytes from `start` to before `stop`, and their digest."""

    start: int = Field(ge=0)
    size: int = Field(ge=1)
    digest: Digest

    @property
    def stop(self) -> int:
        """The offset after its last byte."""
        return self.start + self.size


class BlobPlace(Frozen):
    """A folder of blobs, or with `url` a bucket, whose `folder` on this machine has unfinished uploads.

    `cache` is the folder of fetched objects, of at most `cache_bytes`; `seconds` is how long requests to the bucket are
    retried.
    """

    folder: Path
    url: str | None = None
    cache: Path | None = None
    cache_bytes: int = 2**30
    seconds: float = 20.0
