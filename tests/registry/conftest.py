"""Fixtures of the catalogue's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from registry.catalogue import Catalogue, Database
from tests.registry.catalogue_world import new_database, undone


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory) -> Iterator[Database]:
    """A migrated database that every test leaves empty (it costs a migration a module)."""
    database = new_database(tmp_path_factory.mktemp("catalogue"))
    yield database
    database.close()


@pytest.fixture
def catalogue(empty_database) -> Iterator[Catalogue]:
    """A catalogue inside one write transaction, rolled back after the test."""
    with undone(empty_database) as catalogue:
        yield catalogue
