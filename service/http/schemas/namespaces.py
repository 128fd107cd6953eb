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
    """Permission to tune soups in the namespace."""
    protected_aliases: list[str]
    """Aliases that only an admin moves or removes, and whose versions only an admin retires."""
    unnamed_soup_days: int | None
    """Days without use after which an unnamed soup is retired; 0 is never, null is the server's setting."""
    etag: str


class NamespacePatch(Patch):
    """Changes of a namespace's settings; absent fields do not change."""

    nullable = frozenset({"unnamed_soup_days"})
    tuning: TuningSetting | None = None
    """`forbid` refuses effort `tune`, `allow` permits it. `default` also makes it the default effort, whatever the
    server's is."""
    protected_aliases: list[Part] | None = Field(default=None, max_length=100)
    """All aliases that only an admin may move or remove, existing or not."""
    unnamed_soup_days: int | None = Field(default=None, strict=True, ge=0, le=36_500)
    """Days without use after which an unnamed soup is retired; 0 is never, null is the server's setting."""


class LimitsPatch(Patch, UseLimits):
    """Changes of limits; absent ones do not change, and null sets one to the server's default."""

    nullable = frozenset(UseLimits.model_fields)


class InUse(Wire):
    """The use of its limits by a key or namespace."""

    requests_per_minute: int | None = None
    """The requests that count against the limit now; null without a limit."""
    tokens_per_minute: int | None = None
    """The tokens that count against the limit now; null without a limit."""
    stored_bytes: int
    adapters: int
    jobs: int


class Limits(Wire):
    """The limits of a key or namespace, and its use of them."""

    object: Literal["limits"] = "limits"
    kind: LimitKind
    id: str
    """The key's id, or the namespace."""
    limits: UseLimits
    """The limits that were set for it."""
    in_force: UseLimits
    """The limits in effect, with the server's defaults."""
    in_use: InUse
