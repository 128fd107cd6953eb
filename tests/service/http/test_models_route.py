"""`/v1/models` says of a base model whether its sequences run packed, once that was found out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from service.engine import runner_check
from tests.service.answers import answered
from tests.service.servers import World, open_world, write_bases

ASK = {"prompt": "a", "max_tokens": 2, "temperature": 0}


def packed_of(world: World) -> dict[str, bool | None]:
    """Which listed models run packed; the card of each is checked to agree."""
    listed = {model["id"]: model["packed"] for model in world.client.get("/v1/models").json()["data"]}
    assert {name: world.client.get(f"/v1/models/{name}").json()["packed"] for name in listed} == listed
    return listed


@pytest.fixture
def cold(tiny_base_dir: Path, tmp_path: Path) -> Iterator[World]:
    """A server that loads its two base models at their first use."""
    bases = write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir, "other": tiny_base_dir})
    yield from open_world(tmp_path / "data", bases, preload=False)


def ask(world: World, model: str) -> str:
    return str(answered(world.client.post("/v1/completions", json={"model": model, **ASK}))["choices"][0]["text"])


def test_packed_is_null_until_the_base_model_is_loaded(cold: World) -> None:
    assert packed_of(cold) == {"tiny": None, "other": None}
    ask(cold, "tiny")
    assert packed_of(cold) == {"tiny": True, "other": None}
    cold.push("team/one")
    assert packed_of(cold) == {"tiny": True, "other": None, "team/one": None}, "an adapter runs as its base does"


def test_a_base_model_that_cannot_be_packed_says_so_and_answers_the_same(
    cold: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = ask(cold, "tiny")
    monkeypatch.setattr(runner_check, "_why_not_packed", Mock(return_value="its attention is its own"))
    assert ask(cold, "other") == packed
    assert packed_of(cold) == {"tiny": True, "other": False}
