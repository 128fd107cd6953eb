"""Fixtures of the tests of cooks: registries with adapters, which are pushed and embedded once and then copied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from registry.catalogue import Database
from tests.postgres import Databases
from tests.registry.memory_blobs import MemoryBlobs
from tests.registry.toy_registry import INIT, ToyRegistry

Filled = Callable[[tuple[str, ...], bool], tuple[bytes, MemoryBlobs]]


def fill(verbs: ToyRegistry, names: tuple[str, ...], one_start: bool) -> None:
    """Push and embed an adapter of namespace `acme` for each name."""
    for seed, name in enumerate(names):
        verbs.ready(f"acme/{name}", seed=seed, provenance=INIT if one_start else {})


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The SQLite file and the blobs of a registry with adapters of these names, built on first use."""

    @cache
    def database_and_blobs(names: tuple[str, ...], one_start: bool) -> tuple[bytes, MemoryBlobs]:
        folder, blobs = tmp_path_factory.mktemp("filled"), MemoryBlobs()
        with Databases("sqlite", None).new(folder) as database:
            fill(ToyRegistry(database, blobs), names, one_start)
        return (folder / "soup.db").read_bytes(), blobs

    return database_and_blobs


@pytest.fixture
def ready(databases: Databases, tmp_path: Path, filled: Filled) -> Iterator[Callable[..., ToyRegistry]]:
    """Makes a registry of the test's own with adapters of these names, of one start or each of an unknown one."""
    with ExitStack() as stack:

        def registry(*names: str, one_start: bool = True) -> ToyRegistry:
            url = stack.enter_context(databases.url(tmp_path))
            if databases.server is None:
                file, blobs = filled(names, one_start)
                (tmp_path / "soup.db").write_bytes(file)
            database = Database(url, pool_size=4)
            stack.callback(database.close)
            if databases.server is None:
                return ToyRegistry(database, copy.deepcopy(blobs))
            verbs = ToyRegistry(database)
            fill(verbs, names, one_start)
            return verbs

        yield registry


@pytest.fixture
def stocked(ready: Callable[..., ToyRegistry]) -> ToyRegistry:
    """Three domains that can be mixed."""
    return ready("law", "code", "zoo")
