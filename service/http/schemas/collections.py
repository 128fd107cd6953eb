"""Bodies of `/v1/collect`."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.wire import Wire


class CollectRequest(Wire):
    """Request to remove all expired objects now."""

    dry_run: bool = False
    """Only count the objects."""


class Collection(Wire):
    """Counts of the retired and removed objects; with `dry_run` of those that would be."""

    object: Literal["collection"] = "collection"
    dry_run: bool
    retired: int
    """Unnamed soups retired, because they were unused for the period that their namespace sets."""
    soups: int
    """Unnamed soups removed after the grace period."""
    selectors: int
    """Fitted selectors removed, because they no longer serve a pool."""
    blobs: int
    """Blobs removed, because nothing refers to them; their files are removed a day later."""
    bytes: int
    """Total size of these blobs."""
    files: int
    """Files removed, of blobs removed earlier."""
    jobs: int
    """Ended jobs removed, because they were older than the server's retention."""
    usage: int
    """Rows of usage removed for the same reason; there is a row for each day, key, namespace and model."""
    audit: int
    """Entries of the audit log removed for the same reason."""
    expired: list[str]
    """Refs of the first soups retired."""
    removed: list[str]
    """Refs of the first soups removed."""
