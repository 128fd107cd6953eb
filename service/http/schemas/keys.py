"""Bodies of `/v1/keys`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from registry.names import KeyScope, Part
from registry.spec import Words
from service.http.schemas.wire import Moment, Wire


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


class CreatedKey(Key):
    """A key just made: the only answer that ever holds its secret."""

    secret: str


class KeyList(Wire):
    """Every key, revoked ones included."""

    object: Literal["list"] = "list"
    data: list[Key]
