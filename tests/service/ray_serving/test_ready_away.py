"""/readyz of a server whose replicas are lost: it says so, and stays in front of all that it still has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from registry.errors import Internal, SoupError, Unavailable
from service.http.readiness import AWAY, STUCK, Readiness
from tests.service.servers import World, open_world, write_bases


@pytest.fixture(scope="module")
def world(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("ready")
    yield from open_world(folder / "data", write_bases(folder / "bases.toml", {"tiny": tiny_base_dir}), pages=False)


def looked(world: World, error: SoupError, **settings: Any) -> tuple[str, dict[str, str]]:
    """What /readyz says where the engine refuses a token with this error."""

    def submit(_: object) -> None:
        raise error

    parts = world.runtime.services
    engine: Any = SimpleNamespace(submit=submit, loaded_bases=lambda: ("tiny",), preloading=False)
    found = Readiness().of(replace(parts, engine=engine, settings=parts.settings.model_copy(update=settings)))
    return found.status, found.checks


def test_a_server_without_replicas_stays_ready_and_says_so(world: World) -> None:
    status, checks = looked(world, Unavailable("Lost."), ray_address="127.0.0.1:1")
    assert (status, checks["base/tiny"], checks["database"]) == ("ready", AWAY, "ok")


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (Unavailable("Gone."), {}),
        (Internal("Broken."), {"ray_address": "127.0.0.1:1"}),
    ],
)
def test_an_engine_that_fails_by_itself_is_not(world: World, error: SoupError, settings: dict[str, str]) -> None:
    status, checks = looked(world, error, **settings)
    assert (status, checks["base/tiny"]) == ("not_ready", STUCK)
