"""Bodies of limits: of `/v1/keys/{id}/limits` and `/v1/namespaces/{ns}/limits`."""

from __future__ import annotations

from typing import Literal

from registry.spec import LimitKind, UseLimits
from service.http.schemas.wire import Wire


class InUse(Wire):
    """How much of its quotas a key or namespace uses."""

    stored_bytes: int
    adapters: int
    jobs: int


class Limits(Wire):
    """The limits of a key or a namespace, and how much of its quotas is in use."""

    object: Literal["limits"] = "limits"
    kind: LimitKind
    id: str
    """The key's id, or the namespace."""
    limits: UseLimits
    """What was set for it."""
    in_force: UseLimits
    """The same with the server's defaults."""
    in_use: InUse
