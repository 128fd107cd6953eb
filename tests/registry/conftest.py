"""Fixtures of the tests of catalogue and verbs: each test runs on every kind of database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from registry.catalogue import Catalogue, Database
from tests.postgres import Databases, databases  # noqa: F401 (a fixture)
from tests.registry.catalogue_world import undone
from tests.registry.verb_world import VerbWorld


@pytest.fixture
def database(databases: Databases, tmp_path) -> Iterator[Database]:  # noqa: F811
    """A migrated database of the test's own."""
    with databases.new(tmp_path) as database:
        yield database


@pytest.fixture(scope="module")
def empty_database(databases: Databases, tmp_path_factory) -> Iterator[Database]:  # noqa: F811
    """A migrated database that every test leaves empty."""
    with databases.new(tmp_path_factory.mktemp("catalogue")) as database:
        yield database


@pytest.fixture
def catalogue(empty_database) -> Iterator[Catalogue]:
    """A catalogue inside one write transaction, rolled back after the test."""
    with undone(empty_database) as catalogue:
        yield catalogue


@pytest.fixture
def verbs(databases: Databases, tmp_path) -> Iterator[VerbWorld]:  # noqa: F811
    """The verbs over an empty registry."""
    with databases.new(tmp_path, pool_size=4) as database:
        yield VerbWorld(database)
