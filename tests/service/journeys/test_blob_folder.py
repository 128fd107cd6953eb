"""A folder of blobs that goes away or cannot be written while a server works: 503 in one sentence, not ready, and on
it goes when the folder is back."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.errors import Unavailable
from registry.names import sha256_digest
from service.runtime import Runtime
from service.settings import Settings
from tests.registry.refusing_disk import refuse_new_files
from tests.service.passages import passages
from tests.service.servers import BASE_ID, World, open_world, write_bases


@pytest.fixture
def bases(tiny_base_dir: Path, tmp_path: Path) -> Path:
    return write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})


@pytest.fixture
def world(bases: Path, tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path / "data", bases, ready_seconds=0, job_workers=0)


def said(answer: Any) -> str:
    """The sentence of a 503."""
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("unavailable", "server_error")
    return str(error["message"])


def ready(world: World) -> tuple[int, str]:
    answer = world.client.get("/readyz")
    return answer.status_code, answer.json()["checks"]["blobs"]


def manifest(world: World, name: str) -> dict[str, Any]:
    """A push of the adapter that is there, under another name."""
    there = world.client.get("/v1/adapters/acme/there").json()
    return {
        "name": name, "domain": "d", "base_model": BASE_ID, "config": there["config"],
        "files": {"adapter_model.safetensors": {"digest": there["weights_blob"]}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("left", "what"),
    [("nothing", "is gone"), ("a file", "is gone"), ("an empty folder", "is another one")],
)
def test_gone_and_back(world: World, left: str, what: str, caplog: pytest.LogCaptureFixture) -> None:
    pushed = world.push("acme/there")
    blob = pushed["weights_blob"]
    assert ready(world) == (200, "ok")
    folder = world.runtime.settings.blobs_dir
    folder.rename(folder.with_name("elsewhere"))
    if left == "a file":
        folder.write_text("")
    elif left == "an empty folder":
        folder.mkdir()
    with caplog.at_level(logging.INFO, "soup.blobs"):
        for _ in range(2):
            for answer in (
                world.client.put(f"/v1/blobs/{sha256_digest(b'new')}", content=b"new"),
                world.client.get(f"/v1/blobs/{blob}"),
                world.client.post("/v1/adapters", json=manifest(world, "acme/new")),
                world.client.get("/v1/adapters/acme/there/files"),
                world.client.get("/v1/adapters/acme/there/files/adapter_model.safetensors"),
                world.client.post("/v1/completions", json={"model": "acme/there", "prompt": "a", "max_tokens": 1}),
                world.client.post("/v1/soups", json={"sample": {"texts": passages("court", 25)}}),
            ):
                assert "mount it or put it back" in said(answer)
            assert ready(world) == (503, what)
        assert world.client.head(f"/v1/blobs/{blob}").status_code == 503
        assert world.client.get("/healthz").status_code == 200
        assert world.client.get("/v1/adapters/acme/there").json()["digest"] == pushed["digest"]  # it is in the database
        assert left != "an empty folder" or list(folder.iterdir()) == []  # nothing went to the wrong disk
        if left == "a file":
            folder.unlink()
        elif left == "an empty folder":
            folder.rmdir()
        folder.with_name("elsewhere").rename(folder)
        assert ready(world) == (200, "ok")
    assert [record.levelname for record in caplog.records if record.name == "soup.blobs"] == ["WARNING", "INFO"]
    assert world.client.get(f"/v1/blobs/{blob}").status_code == 200
    assert world.client.post("/v1/adapters", json=manifest(world, "acme/new")).status_code == 201


def test_read_only_and_writable_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = world.push("acme/there")["weights_blob"]
    digest = sha256_digest(b"new")
    with monkeypatch.context() as patch:
        refuse_new_files(patch, errno.EROFS)
        sentence = said(world.client.put(f"/v1/blobs/{digest}", content=b"new"))
        assert sentence.startswith("The folder of the blobs is read-only (Read-only file system); nothing of this was")
        assert ready(world) == (503, "is read-only")
        assert world.client.get(f"/v1/blobs/{blob}").status_code == 200
        assert world.client.head(f"/v1/blobs/{digest}").status_code == 404
    assert ready(world) == (200, "ok")
    assert world.client.put(f"/v1/blobs/{digest}", content=b"new").status_code == 201


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_a_start_without_it_is_refused_until_it_is_back(bases: Path, tmp_path: Path, left: str) -> None:
    data = tmp_path / "data"
    for world in open_world(data, bases, job_workers=0):
        blob = world.push("acme/there")["weights_blob"]
    folder = data / "blobs"
    folder.rename(data / "elsewhere")
    if left == "an empty folder":
        folder.mkdir()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"names 1 blobs and none is in .*carries no mark: mount it"):
            Runtime(Settings(data=data, bases=bases)).start()
        assert not (folder / "store.json").exists()
    (folder / "incoming").rmdir()
    folder.rmdir()
    (data / "elsewhere").rename(folder)
    for world in open_world(data, bases, job_workers=0):
        assert world.client.get(f"/v1/blobs/{blob}").status_code == 200
