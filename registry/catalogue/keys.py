"""Keys by the hash of their secret; the secret itself is never stored."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Iterable
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import select, update

from registry.catalogue.repository import Repository, now
from registry.catalogue.rows import KeyRow
from registry.catalogue.tables import keys
from registry.errors import NotFound


class Keys(Repository[KeyRow]):
    """Key rows."""

    values = TypeAdapter(KeyRow)

    def add(
        self,
        name: str,
        secret_sha256: str,
        *,
        namespaces: tuple[str, ...] | None,
        scopes: Iterable[str],
        prefix: str,
        expires_at: datetime | None = None,
    ) -> KeyRow:
        """Store a new key."""
        id_ = "key-" + secrets.token_hex(8)
        self._insert(
            keys,
            id=id_,
            name=name,
            secret_sha256=secret_sha256,
            namespaces=None if namespaces is None else list(namespaces),
            scopes=sorted(scopes),
            prefix=prefix,
            created_at=now(),
            expires_at=expires_at,
        )
        return self._get(id_)

    def by_secret(self, secret_sha256: str) -> KeyRow | None:
        """The key with this secret, revoked or expired though it may be."""
        return self._one(select(keys).where(keys.c.secret_sha256 == secret_sha256))

    def list(self) -> builtins.list[KeyRow]:
        """Every key, oldest first."""
        return self._all(select(keys).order_by(keys.c.created_at, keys.c.id))

    def admins(self) -> builtins.list[KeyRow]:
        """The keys that may do everything, everywhere, and for good: scope `admin`, all namespaces, without an end."""
        lasting = (one for one in self.list() if one.revoked_at is None and one.expires_at is None)
        return [one for one in lasting if one.namespaces is None and "admin" in one.scopes]

    def revoke(self, id: str) -> KeyRow:
        """Revoke a key; once revoked it stays as it was. Raises NotFound."""
        live = update(keys).where(keys.c.id == id, keys.c.revoked_at.is_(None))
        self._connection.execute(live.values(revoked_at=now()))
        return self._get(id)

    def _get(self, id: str) -> KeyRow:
        row = self._one(select(keys).where(keys.c.id == id))
        if row is None:
            raise NotFound("There is no such key.", param="id")
        return row
