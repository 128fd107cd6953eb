"""The mark of a store, in its database and in its folder of blobs: which two belong together, and which is older."""

from __future__ import annotations

from pydantic import Field

from registry.spec.frozen import Frozen


class StoreMark(Frozen):
    """`store` is drawn once for a database and its blobs; `generation` goes up whenever a server starts over them.

    A database of a lower generation than its blobs is an older copy.
    """

    store: str = Field(pattern="^[0-9a-f]{32}$")
    generation: int = Field(ge=1)
