"""Aliases of many names at once, as a page of a list asks for them."""

from __future__ import annotations

from registry.catalogue import Database
from tests.registry.catalogue_rows import add


def test_aliases_of_these_names_and_no_others(database: Database) -> None:
    with database.write() as catalogue:
        for name in ("acme/law", "acme/food", "other/law"):
            add(catalogue, name)
            for alias in ("prod", "best"):
                catalogue.aliases.put(*name.split("/"), alias, 1)
    with database.read() as catalogue:
        found = catalogue.aliases.of([("acme", "law"), ("other", "law"), ("other", "food")])
        none = catalogue.aliases.of([])
    rows = [(f"{row.namespace}/{row.name}@{row.alias}", row.version) for row in found]
    assert rows == [(f"{name}@{alias}", 1) for name in ("acme/law", "other/law") for alias in ("best", "prod")]
    assert none == []
