"""API keys by the hash of their secret, and sessions of browsers signed in with one; no secret is stored."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, and_, bindparam, case, func, literal, select, tuple_

from registry.catalogue.repository import Repository, no_cursor, now, read_cursor, write_cursor
from registry.catalogue.rows import KeyRow, Namespaces, Page, SessionRow
from registry.catalogue.tables import former_secrets, keys, sessions
from registry.errors import NotFound

OLDEST = (keys.c.created_at, keys.c.id)
BY_SECRET = select(keys).where(keys.c.secret_sha256 == bindparam("secret"))
"""Built once, since every request looks up a key: building it would cost a third of the lookup's CPU time."""
BATCH = 500
"""Rows that `page` reads at a time."""


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
        return self.get(id_)

    def add_identity(
        self,
        id: str,
        name: str,
        *,
        issuer: str,
        subject: str,
        namespaces: tuple[str, ...] | None,
        scopes: Iterable[str],
    ) -> KeyRow:
        """Store an identity of an issuer; it has no secret."""
        self._insert(
            keys,
            id=id,
            name=name,
            secret_sha256=id,
            namespaces=None if namespaces is None else list(namespaces),
            scopes=sorted(scopes),
            issuer=issuer,
            subject=subject,
            prefix="oidc",
            created_at=now(),
        )
        return self.get(id)

    def count_identities(self) -> int:
        """The number of identities, revoked ones included."""
        return self._count(keys, keys.c.issuer.is_not(None))

    def by_secret(self, secret_sha256: str) -> KeyRow | None:
        """The key with this secret, also a revoked or expired one."""
        row = self._connection.execute(BY_SECRET, {"secret": secret_sha256}).mappings().first()
        return None if row is None else self._row(row)

    def by_former_secret(self, secret_sha256: str) -> tuple[KeyRow, datetime] | None:
        """The key whose previous secret this is, and until when that may still be used."""
        query = select(former_secrets).where(former_secrets.c.secret_sha256 == secret_sha256)
        row = self._connection.execute(query).first()
        return None if row is None else (self.get(row.key_id), row.ends_at)

    def list(self) -> builtins.list[KeyRow]:
        """Every key, oldest first."""
        return self._all(select(keys).order_by(*OLDEST))

    def page(self, manages: Callable[[Namespaces], bool], *, limit: int, cursor: str | None) -> Page[KeyRow]:
        """At most `limit` keys for whose namespaces `manages` returns True, oldest first, after `cursor`.

        Only the namespaces of other keys are read. Raises InvalidParameter for an invalid cursor.
        """
        ids: builtins.list[str] = []
        last = None if cursor is None else self._position(cursor, manages)
        while len(ids) <= limit:
            query = select(keys.c.id, keys.c.created_at, keys.c.namespaces).order_by(*OLDEST).limit(BATCH)
            rows = self._connection.execute(query if last is None else query.where(_after(*last))).all()
            ids += [row.id for row in rows if manages(None if row.namespaces is None else tuple(row.namespaces))]
            if len(rows) < BATCH:
                break
            last = rows[-1].created_at, rows[-1].id
        page = self._all(select(keys).where(keys.c.id.in_(ids[:limit])).order_by(*OLDEST))
        return Page(rows=tuple(page), next_cursor=write_cursor(ids[limit - 1]) if len(ids) > limit else None)

    def _position(self, cursor: str, manages: Callable[[Namespaces], bool]) -> tuple[datetime, str]:
        """The position of a cursor's key in the order of OLDEST; keys are never removed."""
        row = self.find(read_cursor(cursor))
        if row is None or not manages(row.namespaces):  # tells nobody whether another tenant's key exists
            raise no_cursor()
        return row.created_at, row.id

    def counts(self, moment: datetime) -> dict[str, int]:
        """The number of keys by state at a moment: active, expired, identity (of an issuer), revoked."""
        state = case(
            (keys.c.revoked_at.is_not(None), "revoked"),
            (keys.c.issuer.is_not(None), "identity"),
            (keys.c.expires_at <= moment, "expired"),
            else_="active",
        ).label("state")
        rows = self._connection.execute(select(state, func.count()).group_by(state)).all()
        return dict.fromkeys(("active", "expired", "identity", "revoked"), 0) | {row[0]: int(row[1]) for row in rows}

    def admins(self) -> builtins.list[KeyRow]:
        """Keys with scope `admin` and all namespaces that do not expire, oldest first.

        Without identities, whose issuer can withdraw their rights.
        """
        is_permanent = and_(keys.c.revoked_at.is_(None), keys.c.expires_at.is_(None), keys.c.issuer.is_(None))
        rows = self._all(select(keys).where(is_permanent).order_by(*OLDEST))
        return [row for row in rows if row.is_lasting_admin]

    def revoke(self, id: str) -> KeyRow:
        """Revoke a key, which has no effect on a revoked one; raises NotFound."""
        self._update(keys, keys.c.id == id, keys.c.revoked_at.is_(None), revoked_at=now())
        return self.get(id)

    def rotate(self, id: str, secret_sha256: str, *, prefix: str, ends_at: datetime) -> KeyRow:
        """Replace the secret of a key; its previous secrets expire at `ends_at`, or earlier if they already do."""
        previous = self.secret_of(id)
        is_later = former_secrets.c.ends_at > ends_at
        self._update(former_secrets, former_secrets.c.key_id == id, is_later, ends_at=ends_at)
        self._insert(former_secrets, secret_sha256=previous, key_id=id, ends_at=ends_at)
        self.change(id, secret_sha256=secret_sha256, prefix=prefix)
        return self.get(id)

    def change(self, id: str, **values: Any) -> KeyRow:
        """Change columns of a key; raises NotFound."""
        self._update(keys, keys.c.id == id, **values)
        return self.get(id)

    def record_use(self, moments: Mapping[str, datetime]) -> None:
        """Record when keys were last used, by id; an earlier moment than the recorded one has no effect."""
        for id, moment in moments.items():
            earlier = keys.c.last_used_at.is_(None) | (keys.c.last_used_at < moment)
            self._update(keys, keys.c.id == id, earlier, last_used_at=moment)

    def find(self, id: str) -> KeyRow | None:
        """The key with this id, None if there is none."""
        return self._first(select(keys).where(keys.c.id == id))

    def is_revoked(self, id: str) -> bool:
        """Return True if there is such a key and it is revoked."""
        return self._exists(keys.c.id == id, keys.c.revoked_at.is_not(None))

    def secret_of(self, id: str) -> str:
        """The hash of a key's secret."""
        return str(self._connection.scalars(select(keys.c.secret_sha256).where(keys.c.id == id)).one())

    def get(self, id: str) -> KeyRow:
        """The key with this id; raises NotFound."""
        row = self.find(id)
        if row is None:
            raise NotFound("There is no such key.", param="id")
        return row


def _after(created_at: datetime, id: str) -> ColumnElement[bool]:
    """The condition that a key comes after this one in the order of OLDEST."""
    return tuple_(*OLDEST) > tuple_(literal(created_at, keys.c.created_at.type), literal(id))


class Sessions(Repository[SessionRow]):
    """Session rows; expired sessions are not found."""

    values = TypeAdapter(SessionRow)

    def add(self, token_sha256: str, *, secret_sha256: str, key_id: str, expires_at: datetime, most: int) -> None:
        """Store a session; deletes expired sessions, and the oldest of the key so that it has at most `most`."""
        self._delete(sessions, sessions.c.expires_at <= now())
        newest_first = (
            select(sessions.c.token_sha256)
            .where(sessions.c.key_id == key_id)
            .order_by(sessions.c.created_at.desc(), sessions.c.token_sha256)
        )
        excess = list(self._connection.scalars(newest_first.offset(most - 1)))
        self._delete(sessions, sessions.c.token_sha256.in_(excess))
        self._insert(
            sessions,
            token_sha256=token_sha256,
            secret_sha256=secret_sha256,
            key_id=key_id,
            created_at=now(),
            expires_at=expires_at,
        )

    def find(self, token_sha256: str) -> SessionRow | None:
        """The session with this token's hash, None if there is none or it has expired."""
        query = select(sessions).where(sessions.c.token_sha256 == token_sha256, sessions.c.expires_at > now())
        return self._first(query)

    def remove(self, token_sha256: str) -> None:
        """Delete a session, if it exists."""
        self._delete(sessions, sessions.c.token_sha256 == token_sha256)

    def remove_of_key(self, key_id: str) -> None:
        """Delete all sessions of a key."""
        self._delete(sessions, sessions.c.key_id == key_id)

    def remove_all(self) -> None:
        """Delete all sessions."""
        self._delete(sessions)
