"""Bodies of `/v1/keys`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from registry.names import KeyScope, Part
from registry.spec import Words
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Moment, Page, Patch, Wire


class NewKey(Wire):
    """A key to create. With `namespaces` null it sees all namespaces; without `expires_at` it does not expire."""

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
    """Time of the last use, accurate to some minutes; null if it was never used."""
    issuer: str | None = None
    """The issuer of an identity's tokens; `scopes` and `namespaces` are those of the last token."""
    subject: str | None = None


class KeyPatch(Patch):
    """Changes of a key; absent fields do not change.

    With `namespaces` null the key sees all namespaces, with `expires_at` null it does not expire.
    """

    nullable = frozenset({"namespaces", "expires_at"})
    name: Words | None = Field(default=None, min_length=1, max_length=100)
    namespaces: list[Part] | None = Field(default=None, max_length=1000)
    scopes: list[KeyScope] | None = Field(default=None, min_length=1, max_length=8)
    expires_at: Moment | None = None


class Rotation(Frozen):
    """Seconds for which the previous secret remains valid."""

    grace_seconds: int = Field(default=0, strict=True, ge=0, le=7 * 86_400)


class CreatedKey(Key):
    """A key that was just created, or whose secret was just replaced: the only answer with its secret."""

    secret: str


class KeyList(Page[Key]):
    """Keys, oldest first, including revoked ones."""
