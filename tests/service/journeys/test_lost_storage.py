"""A folder of blobs or a SQLite file that goes away: told before anything is acknowledged, and nothing is lost."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from registry.errors import Unavailable
from registry.names import sha256_digest
from service.runtime import Runtime
from service.settings import Settings
from tests.service.answers import refusal, temporary_refusal
from tests.service.passages import passages
from tests.service.pushes import manifest
from tests.service.servers import World, open_world, opened_world


@pytest.fixture
def world(allowlist: Path, tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path / "data", allowlist, ready_seconds=0, job_workers=0)


def ready(world: World) -> tuple[int, str]:
    answer = world.client.get("/readyz")
    return answer.status_code, answer.json()["checks"]["blobs"]


def test_gone_and_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Of an empty folder in its place, as an unmounted disk leaves it; what else may be there the store's tests ask."""
    pushed = world.push("acme/there")
    blob = pushed["weights_blob"]
    new_manifest = manifest("acme/new", blob)
    assert ready(world) == (200, "ok")
    folder = world.runtime.settings.blobs_dir
    folder.rename(folder.with_name("elsewhere"))
    folder.mkdir()
    with caplog.at_level(logging.INFO, "soup.blobs"):
        for _ in range(2):
            for answer in (
                world.client.put(f"/v1/blobs/{sha256_digest(b'new')}", content=b"new"),
                world.client.get(f"/v1/blobs/{blob}"),
                world.client.post("/v1/adapters", json=new_manifest),
                world.client.get("/v1/adapters/acme/there/files"),
                world.client.get("/v1/adapters/acme/there/files/adapter_model.safetensors"),
                world.client.post("/v1/completions", json={"model": "acme/there", "prompt": "a", "max_tokens": 1}),
                world.client.post("/v1/soups", json={"sample": {"texts": passages("court", 25)}}),
            ):
                assert "mount it or put it back" in temporary_refusal(answer)
            assert ready(world) == (503, "is another one")
        assert world.client.head(f"/v1/blobs/{blob}").status_code == 503
        assert world.client.get("/healthz").status_code == 200
        assert world.client.get("/v1/adapters/acme/there").json()["digest"] == pushed["digest"]  # it is in the database
        assert list(folder.iterdir()) == []  # nothing went to the wrong disk
        folder.rmdir()
        folder.with_name("elsewhere").rename(folder)
        assert ready(world) == (200, "ok")
    assert [record.levelname for record in caplog.records if record.name == "soup.blobs"] == ["WARNING", "INFO"]
    assert world.client.get(f"/v1/blobs/{blob}").status_code == 200
    assert world.client.post("/v1/adapters", json=new_manifest).status_code == 201


def test_a_start_without_it_is_refused_until_it_is_back(allowlist: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for world in open_world(data, allowlist, job_workers=0):
        blob = world.push("acme/there")["weights_blob"]
    folder = data / "blobs"
    folder.rename(data / "elsewhere")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"names 1 blobs and none is in .*carries no mark: mount it"):
            Runtime(Settings(data=data, bases=allowlist)).start()
        assert not (folder / "store.json").exists()
    shutil.rmtree(folder)
    (data / "elsewhere").rename(folder)
    for world in open_world(data, allowlist, job_workers=0):
        assert world.client.get(f"/v1/blobs/{blob}").status_code == 200


# --- a SQLite file that goes away -----------------------------------------------------------------


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
    newer, all_blobs = file.read_bytes(), stored(data)
    file.unlink()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"is new and names no blob, but .* holds 2: .*repair-a-server"):
            Runtime(Settings(data=data, bases=allowlist)).start()
    assert stored(data) == all_blobs
    file.write_bytes(older)
    with served(data, allowlist) as world:
        assert world.client.get("/v1/adapters/acme/late").status_code == 404
        assert stored(data) < all_blobs
    file.write_bytes(newer)
    with served(data, allowlist) as world:
        assert world.client.get("/v1/adapters/acme/late").json()["digest"] == late["digest"]
        assert world.client.get("/v1/adapters/acme/late/files/adapter_model.safetensors").status_code == 200
    assert stored(data) == all_blobs
