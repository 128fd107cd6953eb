"""Fixtures of these tests: catalogues, the verbs over an empty registry, and what is written durably."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names, in order, of everything that is synced or renamed."""
    events: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        events.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        events.append(f"rename {self.name} {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    return events
