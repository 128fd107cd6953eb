"""Bodies of `/v1/collect`."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.wire import Wire


class CollectRequest(Wire):
    """What is due now is to be collected."""

    dry_run: bool = False
    """Only say what would go."""


class Collection(Wire):
    """What was taken away, or with `dry_run` what would be."""

    object: Literal["collection"] = "collection"
    dry_run: bool
    retired: int
    """Unnamed soups that nobody used for as long as their namespace keeps them."""
    soups: int
    """Unnamed soups that were retired for the grace period, removed."""
    selectors: int
    """Fitted selectors that serve no pool any more, removed."""
    blobs: int
    """Blobs that nothing is made of: no longer there; their files go a day later."""
    bytes: int
    """Of these blobs."""
    files: int
    """Files of blobs that were taken away before, removed."""
    jobs: int
    """Ended jobs that were older than the server keeps them, removed."""
    usage: int
    """Rows of usage that were, a row for each day, key, namespace and model."""
    audit: int
    """Entries of the audit that were."""
    expired: list[str]
    """The first of the soups that were retired."""
    removed: list[str]
    """The first of those that were removed."""
