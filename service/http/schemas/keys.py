"""Bodies of `/v1/keys`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from registry.names import KeyScope, Part
from registry.spec import Words
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Moment, Patch, Wire


class NewKey(Wire):
    """A key to make. `namespaces` null sees every namespace; without `expires_at` it does not expire."""

    name: Words = Field(min_length=1, max_length=100)
    namespaces: list[Part] | None = Field(max_length=1000)
    scopes: list[KeyScope] = Field(min_length=1, max_length=8)
    expires_at: Moment | None = None


class Key(Wire):
    """A key, without its secret; `prefix` is the beginning of the secret."""

    object: Literal["key"] = "key"
    id: str
    name: str
    prefix: str
    namespaces: list[str] | None
    scopes: list[str]
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Within some minutes; null where it was never used."""
    issuer: str | None = None
    """Of an identity, which comes with tokens of this issuer; `scopes` and `namespaces` are those of its last one."""
    subject: str | None = None


class KeyPatch(Patch):
    """What is to change of a key; what is not named stays.

    `namespaces` null sees every namespace, `expires_at` null never ends.
    """

    nullable = frozenset({"namespaces", "expires_at"})
    name: Words | None = Field(default=None, min_length=1, max_length=100)
    namespaces: list[Part] | None = Field(default=None, max_length=1000)
    scopes: list[KeyScope] | None = Field(default=None, min_length=1, max_length=8)
    expires_at: Moment | None = None


class Rotation(Frozen):
    """How long the secret that a key had goes on to work."""

    grace_seconds: int = Field(default=0, strict=True, ge=0, le=7 * 86_400)


class CreatedKey(Key):
    """A key just made, or whose secret was just replaced: the only answer that ever holds its secret."""

    secret: str


class KeyList(Wire):
    """Keys, oldest first, revoked ones included."""

    object: Literal["list"] = "list"
    data: list[Key]
    next_cursor: str | None = None
