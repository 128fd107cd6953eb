"""Bodies of `/v1/namespaces`, and of limits: of `/v1/keys/{id}/limits` and `/v1/namespaces/{ns}/limits`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.names import Part
from registry.spec import LimitKind, TuningSetting, UseLimits
from service.http.schemas.wire import Patch, Wire


class Namespace(Wire):
    """The settings of a namespace."""

    object: Literal["namespace"] = "namespace"
    namespace: str
    tuning: TuningSetting
    """Whether soups may be tuned in it."""
    protected_aliases: list[str]
    """Aliases that only an admin moves or removes, and whose versions only an admin retires."""
    unnamed_soup_days: int | None
    """Days after which an unnamed soup that nobody used is retired; 0: never, null: what the server's setting says."""
    etag: str


class NamespacePatch(Patch):
    """What is to change of a namespace's settings; what is not named stays."""

    nullable = frozenset({"unnamed_soup_days"})
    tuning: TuningSetting | None = None
    """`forbid` refuses effort `tune`, `allow` leaves it to the request, `default` takes it for requests that are to be
    verified and name no effort, selector or recipe."""
    protected_aliases: list[Part] | None = Field(default=None, max_length=100)
    """All aliases that only an admin moves or removes, whether or not they point anywhere yet."""
    unnamed_soup_days: int | None = Field(default=None, strict=True, ge=0, le=36_500)
    """Days after which an unnamed soup that nobody used is retired; 0: never, null: what the server's setting says."""


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
