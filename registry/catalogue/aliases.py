"""Aliases: movable names for versions of an adapter, changed by compare-and-set."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, and_, select, tuple_

from registry.catalogue.repository import Repository, is_expected
from registry.catalogue.rows import AliasRow, Etags
from registry.catalogue.tables import aliases
from registry.errors import NotFound, PreconditionFailed


class Aliases(Repository[AliasRow]):
    """Alias rows."""

    values = TypeAdapter(AliasRow)

    def _row(self, row: Any) -> AliasRow:
        return self.values.validate_python({**row, "etag": f"{row['version']}-{row['revision']}"})

    def get(self, namespace: str, name: str, alias: str) -> AliasRow | None:
        """The alias of a name, None if there is none."""
        return self._first(select(aliases).where(_has_key(namespace, name, alias)))

    def list(self, namespace: str, name: str) -> builtins.list[AliasRow]:
        """Every alias of a name, in alphabetical order."""
        query = select(aliases).where(aliases.c.namespace == namespace, aliases.c.name == name)
        return sorted(self._all(query), key=lambda row: row.alias)  # not in SQL: collations of databases differ

    def by_names(self, names: Sequence[tuple[str, str]]) -> builtins.list[AliasRow]:
        """Every alias of these (namespace, name) pairs, in alphabetical order."""
        query = select(aliases).where(tuple_(aliases.c.namespace, aliases.c.name).in_(names))
        return sorted(self._all(query), key=lambda row: (row.namespace, row.name, row.alias))

    def put(self, namespace: str, name: str, alias: str, version: int, *, if_match: Etags = None) -> AliasRow:
        """Point an alias at a version; raises PreconditionFailed if `if_match` has not its present etag.

        One UPDATE of the revision that was read, so that no concurrent change is lost.
        """
        present = self.get(namespace, name, alias)
        _check(present, if_match)
        if present is None:
            self._insert(aliases, namespace=namespace, name=name, alias=alias, version=version, revision=1)
        else:
            values = {"version": version, "revision": aliases.c.revision + 1}
            self._check_changed(present, self._update(aliases, _is_unchanged(present), **values))
        row = self.get(namespace, name, alias)
        assert row is not None
        return row

    def delete(self, namespace: str, name: str, alias: str, *, if_match: Etags = None) -> None:
        """Remove an alias; raises NotFound, or PreconditionFailed."""
        present = self.get(namespace, name, alias)
        if present is None:
            raise NotFound(f"{namespace}/{name} has no alias {alias!r}.", param="alias")
        _check(present, if_match)
        self._check_changed(present, self._delete(aliases, _is_unchanged(present)))

    def _check_changed(self, previous: AliasRow, rows: int) -> None:
        if rows == 0:
            _check(self.get(previous.namespace, previous.name, previous.alias), frozenset({previous.etag}))


def _has_key(namespace: str, name: str, alias: str) -> ColumnElement[bool]:
    return and_(aliases.c.namespace == namespace, aliases.c.name == name, aliases.c.alias == alias)


def _is_unchanged(row: AliasRow) -> ColumnElement[bool]:
    """The condition that the alias has the revision that was read."""
    revision = int(row.etag.rpartition("-")[2])
    return and_(_has_key(row.namespace, row.name, row.alias), aliases.c.revision == revision)


def _check(present: AliasRow | None, if_match: Etags) -> None:
    if if_match is not None and (present is None or not is_expected(present.etag, if_match)):
        state = "does not exist" if present is None else f"is now at version {present.version} (etag {present.etag})"
        raise PreconditionFailed(f"The alias {state}: read it again before changing it.", param="if-match")
