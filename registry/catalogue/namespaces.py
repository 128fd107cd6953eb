"""Settings of namespaces, changed by compare-and-set. A namespace without a row has the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import and_, select

from registry.catalogue.repository import Repository, is_expected
from registry.catalogue.rows import Etags, NamespaceRow
from registry.catalogue.tables import namespaces
from registry.errors import PreconditionFailed

DEFAULTS: Mapping[str, Any] = {"tuning": "allow", "protected_aliases": [], "unnamed_soup_days": None}


class NamespaceSettings(Repository[NamespaceRow]):
    """Namespace rows."""

    values = TypeAdapter(NamespaceRow)

    def _row(self, row: Any) -> NamespaceRow:
        aliases = row["protected_aliases"] or ()  # NULL if an older server wrote the row
        return self.values.validate_python(
            {**row, "protected_aliases": aliases, "etag": f"{row['tuning']}-{row['revision']}"}
        )

    def get(self, namespace: str) -> NamespaceRow:
        """The settings of a namespace, its defaults if it has no row."""
        row = self._first(select(namespaces).where(namespaces.c.namespace == namespace))
        return row or self._row({**DEFAULTS, "namespace": namespace, "revision": 0})

    def set(self, namespace: str, changes: Mapping[str, Any], *, if_match: Etags = None) -> NamespaceRow:
        """Change settings, by their names; raises PreconditionFailed if `if_match` has not their etag.

        One UPDATE of the revision that was read, so that no concurrent change is lost.
        """
        present = self.get(namespace)
        _check(present, if_match)
        revision = int(present.etag.rpartition("-")[2])
        if revision == 0:
            self._insert(namespaces, **{**DEFAULTS, **changes}, namespace=namespace, revision=1)
        else:
            is_unchanged = and_(namespaces.c.namespace == namespace, namespaces.c.revision == revision)
            if self._update(namespaces, is_unchanged, **changes, revision=revision + 1) == 0:
                _check(self.get(namespace), frozenset({present.etag}))
        return self.get(namespace)


def _check(present: NamespaceRow, if_match: Etags) -> None:
    if not is_expected(present.etag, if_match):
        raise PreconditionFailed(
            f"The settings of namespace {present.namespace!r} are now at etag {present.etag}: read them again before "
            "changing them.",
            param="if-match",
        )
