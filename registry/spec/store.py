"""The mark of a store, in its database and beside its blobs: which two belong together, and which is older. Where blobs
are kept, as a value that travels to other processes. A part of a blob that is not whole yet."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from registry.names import Digest
from registry.spec.frozen import Frozen


class StoreMark(Frozen):
    """`store` is drawn once for a database and its blobs; `generation` goes up whenever a server starts over them.

    A database of a lower generation than its blobs is an older copy.
    """

    store: str = Field(pattern="^[0-9a-f]{32}$")
    generation: int = Field(ge=1)


class UploadPart(Frozen):
    """A part of an upload that is kept as an object: the bytes from `start` to before `stop`, and their digest."""

    start: int = Field(ge=0)
    size: int = Field(ge=1)
    digest: Digest

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return self.start + self.size


class BlobPlace(Frozen):
    """A folder of blobs; or with `url` a bucket, whose `folder` on this machine holds what is not whole yet.

    `cache` is the folder of the objects that were fetched, `cache_bytes` the most it holds; `seconds` is how long the
    bucket is tried again.
    """

    folder: Path
    url: str | None = None
    cache: Path | None = None
    cache_bytes: int = 2**30
    seconds: float = 20.0
