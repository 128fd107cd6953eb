"""Fixtures of these tests: databases of every kind, base models of every family, and what is written durably."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from registry.base_model import LoadedBase, load_base
from registry.catalogue import Catalogue, Database
from registry.spec import BaseEntry
from tests.conftest import build_tiny_base
from tests.postgres import Databases, databases  # noqa: F401 (a fixture)
from tests.registry.catalogue_rows import undone
from tests.registry.toy_registry import ToyRegistry


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
def verbs(databases: Databases, tmp_path) -> Iterator[ToyRegistry]:  # noqa: F811
    """The verbs over an empty registry."""
    with databases.new(tmp_path, pool_size=4) as database:
        yield ToyRegistry(database)


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Callable[[str], LoadedBase]:
    """A loaded tiny base of a family, made when it is first asked for; tests leave it as it was."""
    folder, loaded = tmp_path_factory.mktemp("bases"), dict[str, LoadedBase]()

    def base(family: str) -> LoadedBase:
        if family not in loaded:
            path = build_tiny_base(folder / family, model_type=family)
            loaded[family] = load_base(BaseEntry(id="tiny", source=str(path)))
        return loaded[family]

    return base


@pytest.fixture(scope="module")
def gpt2(bases) -> LoadedBase:
    """The tiny GPT-2."""
    return bases("gpt2")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names, in order, of everything that is synced or renamed."""
    seen: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        seen.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        seen.append(f"rename {self.name} {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    return seen
