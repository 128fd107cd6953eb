"""A server around the tiny base model: in process (`world`), and the same on a real loopback port (`live`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.worlds import BASE_ID, Live, World, open_live, open_world, write_bases


@pytest.fixture(scope="module")
def world(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server over the tiny base, shared by the tests of one module."""
    folder = tmp_path_factory.mktemp("world")
    yield from open_world(folder / "data", write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir}))


@pytest.fixture(scope="module")
def live(world: World) -> Iterator[Live]:
    """`world` behind uvicorn on loopback."""
    yield from open_live(world)
