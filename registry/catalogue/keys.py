"""Keys by the hash of their secret; the secret itself is never stored."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, bindparam, case, func, literal, select, tuple_, update

from registry.catalogue.repository import Repository, no_cursor, now, read_cursor, write_cursor
from registry.catalogue.rows import KeyRow, Namespaces, Page
from registry.catalogue.tables import former_secrets, keys
from registry.errors import NotFound

OLDEST = (keys.c.created_at, keys.c.id)
BY_SECRET = select(keys).where(keys.c.secret_sha256 == bindparam("secret"))
"""Every request asks for a key: a statement that is built once takes a third less of the processor."""
AT_ONCE = 500
"""Keys of which it is read at once whether whoever asks may manage them."""


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
        self, id: str, name: str, *, issuer: str, subject: str, namespaces: tuple[str, ...] | None,
        scopes: Iterable[str],
    ) -> KeyRow:  # fmt: skip
        """Store an identity of an issuer that `identity` does not find; no secret is ever its own."""
        said = {
            "name": name,
            "namespaces": None if namespaces is None else list(namespaces),
            "scopes": sorted(scopes),
            "issuer": issuer,
            "subject": subject,
        }
        if self.find(id) is not None:
            return self.change(id, revoked_at=None, **said)
        self._insert(keys, id=id, secret_sha256=id, prefix="oidc", created_at=now(), **said)
        return self.get(id)

    def identity(self, id: str) -> KeyRow | None:
        """The identity with this id, which it has everywhere.

        None also for one that only migration 0013 has revoked, on the way back: as of the moment when it was made.
        """
        found = self.find(id)
        went_back = found is not None and found.issuer is None and found.revoked_at == found.created_at
        return None if went_back else found

    def count_identities(self) -> int:
        """How many identities there are, revoked ones included."""
        query = select(func.count()).select_from(keys).where(keys.c.issuer.is_not(None))
        return int(self._connection.execute(query).scalar_one())

    def by_secret(self, secret_sha256: str) -> KeyRow | None:
        """The key with this secret, revoked or expired though it may be."""
        row = self._connection.execute(BY_SECRET, {"secret": secret_sha256}).mappings().first()
        return None if row is None else self._row(row)

    def by_former_secret(self, secret_sha256: str) -> tuple[KeyRow, datetime] | None:
        """The key that had this secret before, and until when it may still be used."""
        query = select(former_secrets).where(former_secrets.c.secret_sha256 == secret_sha256)
        found = self._connection.execute(query).first()
        return None if found is None else (self.get(found.key_id), found.ends_at)

    def list(self) -> builtins.list[KeyRow]:
        """Every key, oldest first."""
        return self._all(select(keys).order_by(*OLDEST))

    def page(self, manages: Callable[[Namespaces], bool], *, limit: int, cursor: str | None) -> Page[KeyRow]:
        """At most `limit` keys whose namespaces `manages` says yes of, oldest first, after the one `cursor` names.

        Of those that it says no of nothing but the namespaces is read. Raises InvalidParameter for no cursor of ours.
        """
        found: builtins.list[str] = []
        last = None if cursor is None else self._named(cursor)
        while len(found) <= limit:
            query = select(keys.c.id, keys.c.created_at, keys.c.namespaces).order_by(*OLDEST).limit(AT_ONCE)
            rows = self._connection.execute(query if last is None else query.where(_after(*last))).all()
            found += [row.id for row in rows if manages(None if row.namespaces is None else tuple(row.namespaces))]
            if len(rows) < AT_ONCE:
                break
            last = rows[-1].created_at, rows[-1].id
        shown = found[:limit]
        page = self._all(select(keys).where(keys.c.id.in_(shown)).order_by(*OLDEST))
        return Page(rows=tuple(page), next_cursor=write_cursor(shown[-1]) if len(found) > limit else None)

    def _named(self, cursor: str) -> tuple[datetime, str]:
        """The place of the key that a cursor names: keys are never removed."""
        row = self.find(read_cursor(cursor))
        if row is None:
            raise no_cursor()
        return row.created_at, row.id

    def counts(self, moment: datetime) -> dict[str, int]:
        """How many keys are active then, have expired, and were revoked; and how many are identities of an issuer."""
        revoked, identity = keys.c.revoked_at.is_not(None), keys.c.issuer.is_not(None)
        ends = ((revoked, "revoked"), (identity, "identity"), (keys.c.expires_at <= moment, "expired"))
        state = case(*ends, else_="active").label("state")
        found = self._connection.execute(select(state, func.count()).group_by(state)).all()
        return dict.fromkeys(("active", "expired", "identity", "revoked"), 0) | {row[0]: int(row[1]) for row in found}

    def admins(self) -> builtins.list[KeyRow]:
        """The keys that may do everything, everywhere, and for good: scope `admin`, all namespaces, without an end.

        No identities: what they may do, their issuer can take away.
        """
        ends = (keys.c.revoked_at, keys.c.expires_at, keys.c.issuer)
        lasting = self._all(select(keys).where(*(one.is_(None) for one in ends)).order_by(keys.c.created_at, keys.c.id))
        return [one for one in lasting if one.namespaces is None and "admin" in one.scopes]

    def revoke(self, id: str) -> KeyRow:
        """Revoke a key; once revoked it stays as it was. Raises NotFound."""
        live = update(keys).where(keys.c.id == id, keys.c.revoked_at.is_(None))
        self._connection.execute(live.values(revoked_at=now()))
        return self.get(id)

    def rotate(self, id: str, secret_sha256: str, *, prefix: str, ends_at: datetime) -> KeyRow:
        """Give a key another secret; those that it had end at that moment, or earlier where that was said before."""
        before = self.secret_of(id)
        self._connection.execute(
            update(former_secrets)
            .where(former_secrets.c.key_id == id, former_secrets.c.ends_at > ends_at)
            .values(ends_at=ends_at)
        )
        self._insert(former_secrets, secret_sha256=before, key_id=id, ends_at=ends_at)
        self.change(id, secret_sha256=secret_sha256, prefix=prefix)
        return self.get(id)

    def change(self, id: str, **values: Any) -> KeyRow:
        """Change columns of a key. Raises NotFound."""
        self._connection.execute(update(keys).where(keys.c.id == id).values(**values))
        return self.get(id)

    def used(self, moments: Mapping[str, datetime]) -> None:
        """Note when keys were last used; never an earlier moment than is there."""
        for id, moment in moments.items():
            earlier = keys.c.last_used_at.is_(None) | (keys.c.last_used_at < moment)
            self._connection.execute(update(keys).where(keys.c.id == id, earlier).values(last_used_at=moment))

    def find(self, id: str) -> KeyRow | None:
        """The key with this id."""
        return self._first(select(keys).where(keys.c.id == id))

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
    """Keys that come after one, in the order of `OLDEST`."""
    return tuple_(*OLDEST) > tuple_(literal(created_at, keys.c.created_at.type), literal(id))
