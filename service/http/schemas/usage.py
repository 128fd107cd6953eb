"""Bodies of `/v1/usage`."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.wire import Wire

Group = Literal["day", "key_id", "namespace", "model"]


class UsageTotal(Wire):
    """Requests that the engine began, and the tokens that were read and generated for them."""

    requests: int
    tokens_in: int
    tokens_out: int


class UsageEntry(UsageTotal):
    """A sum of usage; null stands where it is not told apart by that."""

    day: str | None
    """UTC."""
    key_id: str | None
    namespace: str | None
    """The model's, or of a base model the key's own."""
    model: str | None
    """`namespace/name@version`, or `base/<id>`."""


class UsageList(Wire):
    """One page of usage, last day first."""

    object: Literal["list"] = "list"
    data: list[UsageEntry]
    total: UsageTotal
    """Of all pages."""
    next_cursor: str | None = None
