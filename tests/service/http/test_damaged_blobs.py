"""Stored bytes that changed where they lie: never served, named in a 5xx, and repaired by whoever sends them again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from adaptersoup.client.client import SoupClient
from registry.names import sha256_digest
from tests.registry.damaged_files import flip
from tests.service.servers import Live, World, adapter_weights

SETTINGS = {"job_workers": 0, "preload": False}


def place(world: World, digest: str) -> Path:
    """The file of a blob."""
    return world.runtime.settings.blobs_dir / digest[7:9] / digest[7:]


def uploaded(world: World, data: bytes) -> str:
    digest = sha256_digest(data)
    assert world.client.put(f"/v1/blobs/{digest}", content=data).status_code in (200, 201)
    return digest


def refused(answer: Any, digest: str) -> None:
    """Whether an answer is our mistake, and says which blob it is about."""
    assert answer.status_code == 500, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("damaged_blob", "server_error")
    assert digest in error["message"]
    assert str(Path("soup-data")) not in error["message"]


def repairs(world: World) -> list[str]:
    found = world.client.get("/v1/audit", params={"limit": 100}).json()["data"]
    return [one["subject"] for one in found if one["action"] == "blob.repair"]


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=0-9"}, {"range": "bytes=-1"}])
def test_a_download_is_refused_before_its_first_byte(world: World, headers: dict[str, str]) -> None:
    data = b"%d" % len(str(headers)) * 300_000
    digest = uploaded(world, data)
    path = f"/v1/blobs/{digest}"
    assert world.client.get(path, headers=headers).status_code in (200, 206)
    flip(place(world, digest))
    refused(world.client.get(path, headers=headers), digest)
    head = world.client.head(path)
    assert (head.status_code, head.content) == (500, b"")
    uploaded(world, data)
    whole = world.client.get(path)
    assert (whole.status_code, whole.content, whole.headers["etag"]) == (200, data, f'"{digest}"')


def test_a_blob_that_the_database_names_and_the_folder_lacks_is_no_404(world: World) -> None:
    digest = uploaded(world, b"to be lost")
    place(world, digest).unlink()
    refused(world.client.get(f"/v1/blobs/{digest}"), digest)
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 500
    other = world.key(["read", "write"], ["other"])
    foreign = world.client.get(f"/v1/blobs/{digest}", headers=world.headers(other))
    assert foreign.status_code == 404  # who does not see it is told nothing
    uploaded(world, b"to be lost")
    assert world.client.get(f"/v1/blobs/{digest}").content == b"to be lost"


def test_an_upload_of_the_right_bytes_repairs_and_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    data = b"right bytes" * 1000
    digest = uploaded(world, data)
    flip(place(world, digest))
    assert world.client.put(f"/v1/blobs/{digest}", content=b"wrong" * 2200).status_code == 400
    refused(world.client.get(f"/v1/blobs/{digest}"), digest)
    with caplog.at_level(logging.WARNING, "soup.blobs"):
        for _ in range(2):
            uploaded(world, data)
    assert place(world, digest).read_bytes() == data
    assert repairs(world).count(digest) == 1
    assert [message for message in caplog.messages if digest in message] == [
        f"blob {digest} was damaged: the right bytes were sent again and have replaced it"
    ]


def test_the_weights_of_an_adapter(world: World) -> None:
    pushed = world.push("acme/law", seed=1)
    digest = pushed["weights_blob"]
    files = "/v1/adapters/acme/law/files"
    flip(place(world, digest))
    for path in (files, f"{files}/adapter_model.safetensors"):
        refused(world.client.get(path), digest)
    refused(world.client.post("/v1/completions", json={"model": "acme/law", "prompt": "a", "max_tokens": 1}), digest)
    refused(world.client.post("/v1/perplexity", json={"model": "acme/law", "texts": ["a text"]}), digest)
    world.push("acme/law", seed=1)  # known already: its bytes come again
    assert repairs(world).count(digest) == 1
    assert world.client.get(f"{files}/adapter_model.safetensors").content == adapter_weights(world.runtime, seed=1)
    answer = world.client.post("/v1/completions", json={"model": "acme/law", "prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200, answer.text


def test_a_push_that_names_a_damaged_upload(world: World) -> None:
    data = adapter_weights(world.runtime, seed=2)
    digest = uploaded(world, data)
    flip(place(world, digest))
    body = {"name": "acme/named", "domain": "d", "base_model": "tiny", "files": {}, "config": {}}
    known = world.push("acme/config", seed=3)
    body = {**body, "config": known["config"], "files": {"adapter_model.safetensors": {"digest": digest}}}
    refused(world.client.post("/v1/adapters", json=body), digest)
    uploaded(world, data)
    assert world.client.post("/v1/adapters", json=body).status_code == 201


def test_the_client_sends_again_what_is_damaged(live: Live) -> None:
    """It asks with HEAD what it need not send."""
    data = b"as it was" * 5000
    digest = uploaded(live.world, data)
    flip(place(live.world, digest))
    with SoupClient(live.url, live.world.admin) as client:
        assert client.upload(data) == digest
    assert place(live.world, digest).read_bytes() == data
