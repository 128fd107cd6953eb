"""Fixtures of the tests of catalogue and verbs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.catalogue import Catalogue, Database
from tests.registry.catalogue_world import new_database, undone
from tests.registry.verb_world import VerbWorld, database_like


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


@pytest.fixture(scope="session")
def migrated(tmp_path_factory) -> Path:
    """The file of an empty database with every table."""
    folder = tmp_path_factory.mktemp("migrated")
    new_database(folder).close()
    return folder / "soup.db"


@pytest.fixture
def verbs(migrated, tmp_path) -> Iterator[VerbWorld]:
    """The verbs over an empty registry."""
    database = database_like(migrated, tmp_path)
    yield VerbWorld(database)
    database.close()
