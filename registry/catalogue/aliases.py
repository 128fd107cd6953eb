"""Aliases: a word that points at a version of a name, changed by compare-and-set."""

from __future__ import annotations

import builtins
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from registry.catalogue.rows import AliasRow
from registry.catalogue.tables import aliases
from registry.errors import NotFound, PreconditionFailed


class Aliases:
    """Alias rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, namespace: str, name: str, alias: str) -> AliasRow | None:
        """One alias."""
        query = select(aliases).where(_is(namespace, name, alias))
        row = self._connection.execute(query).mappings().one_or_none()
        return None if row is None else _row(row)

    def list(self, namespace: str, name: str) -> builtins.list[AliasRow]:
        """Every alias of a name, in alphabetical order."""
        query = select(aliases).where(aliases.c.namespace == namespace, aliases.c.name == name)
        return [_row(row) for row in self._connection.execute(query.order_by(aliases.c.alias)).mappings()]

    def put(self, namespace: str, name: str, alias: str, version: int, *, if_match: str | None = None) -> AliasRow:
        """Point an alias at a version; raises PreconditionFailed if `if_match` is not its present etag."""
        present = self.get(namespace, name, alias)
        _check(present, if_match)
        if present is None:
            values = {"namespace": namespace, "name": name, "alias": alias, "version": version, "revision": 1}
            self._connection.execute(insert(aliases).values(**values))
        else:
            self._connection.execute(
                update(aliases)
                .where(_is(namespace, name, alias))
                .values(version=version, revision=aliases.c.revision + 1)
            )
        row = self.get(namespace, name, alias)
        assert row is not None
        return row

    def delete(self, namespace: str, name: str, alias: str, *, if_match: str | None = None) -> None:
        """Remove an alias; raises NotFound, or PreconditionFailed."""
        present = self.get(namespace, name, alias)
        if present is None:
            raise NotFound(f"{namespace}/{name} has no alias {alias!r}.", param="alias")
        _check(present, if_match)
        self._connection.execute(delete(aliases).where(_is(namespace, name, alias)))


def _is(namespace: str, name: str, alias: str) -> ColumnElement[bool]:
    return and_(aliases.c.namespace == namespace, aliases.c.name == name, aliases.c.alias == alias)


def _check(present: AliasRow | None, if_match: str | None) -> None:
    if if_match is not None and (present is None or present.etag != if_match):
        now = "does not exist" if present is None else f"is now at version {present.version} (etag {present.etag})"
        raise PreconditionFailed(f"The alias {now}: read it again before changing it.", param="if-match")


def _row(row: Any) -> AliasRow:
    return AliasRow(
        namespace=row["namespace"],
        name=row["name"],
        alias=row["alias"],
        version=row["version"],
        etag=f"{row['version']}-{row['revision']}",
    )
