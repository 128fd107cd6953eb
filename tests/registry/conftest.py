"""Fixtures of these tests: catalogues, and the verbs over an empty registry."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from transformers import PreTrainedModel

from registry.base_model import LoadedBase
from registry.catalogue import Catalogue, Database
from tests.postgres import Databases
from tests.registry.catalogue_rows import undone
from tests.registry.toy_registry import ToyRegistry


@pytest.fixture(scope="module")
def empty_database(databases: Databases, tmp_path_factory) -> Iterator[Database]:
    """A migrated database that every test leaves empty."""
    with databases.new(tmp_path_factory.mktemp("catalogue")) as database:
        yield database


@pytest.fixture
def catalogue(empty_database) -> Iterator[Catalogue]:
    """A catalogue inside one write transaction, rolled back after the test."""
    with undone(empty_database) as catalogue:
        yield catalogue


@pytest.fixture
def verbs(databases: Databases, tmp_path) -> Iterator[ToyRegistry]:
    """The verbs over an empty registry."""
    with databases.new(tmp_path, pool_size=4) as database:
        yield ToyRegistry(database)


@pytest.fixture
def model(gpt2: LoadedBase) -> PreTrainedModel:
    """The model of the tiny GPT-2, one of the test's own."""
    return copy.deepcopy(gpt2.model)
