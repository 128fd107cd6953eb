"""Keys by the hash of their secret; the secret itself is never stored."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, insert, select, update

from registry.catalogue.paging import now
from registry.catalogue.rows import KeyRow
from registry.catalogue.tables import keys
from registry.errors import NotFound


class Keys:
    """Key rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self, name: str, secret_sha256: str, *, namespaces: tuple[str, ...] | None, scopes: Iterable[str], prefix: str
    ) -> KeyRow:
        """Store a new key."""
        id_ = "key-" + secrets.token_hex(8)
        self._connection.execute(
            insert(keys).values(
                id=id_,
                name=name,
                secret_sha256=secret_sha256,
                namespaces=None if namespaces is None else list(namespaces),
                scopes=sorted(scopes),
                prefix=prefix,
                created_at=now(),
            )
        )
        return self._get(id_)

    def by_secret(self, secret_sha256: str) -> KeyRow | None:
        """The key with this secret, revoked or not."""
        query = select(keys).where(keys.c.secret_sha256 == secret_sha256)
        row = self._connection.execute(query).mappings().one_or_none()
        return None if row is None else _row(row)

    def list(self) -> builtins.list[KeyRow]:
        """Every key, oldest first."""
        query = select(keys).order_by(keys.c.created_at, keys.c.id)
        return [_row(row) for row in self._connection.execute(query).mappings()]

    def revoke(self, id: str) -> KeyRow:
        """Revoke a key; once revoked it stays as it was. Raises NotFound."""
        self._connection.execute(
            update(keys).where(keys.c.id == id, keys.c.revoked_at.is_(None)).values(revoked_at=now())
        )
        return self._get(id)

    def _get(self, id: str) -> KeyRow:
        row = self._connection.execute(select(keys).where(keys.c.id == id)).mappings().one_or_none()
        if row is None:
            raise NotFound("There is no such key.", param="id")
        return _row(row)


def _row(row: Any) -> KeyRow:
    namespaces = row["namespaces"]
    return KeyRow(
        id=row["id"],
        name=row["name"],
        namespaces=None if namespaces is None else tuple(namespaces),
        scopes=frozenset(row["scopes"]),
        prefix=row["prefix"],
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
    )
