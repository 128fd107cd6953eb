"""A SQLite file that goes away: noticed before anything is acknowledged, and a start without it deletes nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from registry.errors import Unavailable
from service.runtime import Runtime
from service.settings import Settings
from tests.service.answers import refusal
from tests.service.servers import opened_world

served = partial(opened_world, ready_seconds=0, job_workers=0)


def stored(data: Path) -> set[str]:
    return {path.name for path in (data / "blobs").glob("??/*")}


def test_it_is_noticed_before_a_push_is_acknowledged(allowlist: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data, allowlist) as world:
        world.push("acme/there")
        file = data / "soup.db"
        file.rename(data / "elsewhere.db")
        for answer in (
            world.client.post("/v1/adapters", json={"name": "acme/lost"}),
            world.client.get("/v1/adapters/acme/there"),
        ):
            assert "soup.db was removed or replaced while the server is running" in refusal(answer, 503)
        assert world.client.get("/readyz").status_code == 503
        assert not file.exists()  # no empty one in its place
        (data / "elsewhere.db").rename(file)
        assert world.client.get("/readyz").status_code == 200
        world.push("acme/there", seed=1)


def test_a_start_without_it_is_refused_and_an_older_copy_sets_aside_what_the_newer_one_has_back(
    allowlist: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    file = data / "soup.db"
    with served(data, allowlist) as world:
        world.push("acme/early")
    older = file.read_bytes()
    with served(data, allowlist) as world:
        late = world.push("acme/late", seed=1)
    newer, every = file.read_bytes(), stored(data)
    file.unlink()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"is new and names no blob, but .* holds 2: .*repair-a-server"):
            Runtime(Settings(data=data, bases=allowlist)).start()
    assert stored(data) == every
    file.write_bytes(older)
    with served(data, allowlist) as world:
        assert world.client.get("/v1/adapters/acme/late").status_code == 404
        assert stored(data) < every
    file.write_bytes(newer)
    with served(data, allowlist) as world:
        assert world.client.get("/v1/adapters/acme/late").json()["digest"] == late["digest"]
        assert world.client.get("/v1/adapters/acme/late/files/adapter_model.safetensors").status_code == 200
    assert stored(data) == every
