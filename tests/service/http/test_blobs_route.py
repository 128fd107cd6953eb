"""Blobs over HTTP: verified, bounded, private to who uploaded them, and gone without a trace when they fail.

Stored bytes that changed where they lie are never served, but named in a 5xx and repaired by whoever sends them again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from registry.names import sha256_digest
from tests.registry.damaged_files import flip
from tests.service.answers import answered, refusal_with_code
from tests.service.cluster import until
from tests.service.http.exchanges import half_sent
from tests.service.servers import Live, World, adapter_weights

SETTINGS = {"max_blob_bytes": 2_500_000, "job_workers": 0, "preload": False}


def stored_files(world: World) -> set[str]:
    return {path.name for path in world.runtime.settings.blobs_dir.rglob("*") if path.is_file()}


def test_up_and_down(world: World) -> None:
    data = bytes(range(256)) * 9000  # more than one buffer
    digest = sha256_digest(data)
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 404
    first = world.client.put(f"/v1/blobs/{digest}", content=data)
    assert (first.status_code, first.json()) == (201, {"object": "blob", "digest": digest, "size": len(data)})
    assert first.headers["location"] == f"/v1/blobs/{digest}"
    assert world.client.put(f"/v1/blobs/{digest}", content=data).status_code == 200
    got = world.client.get(f"/v1/blobs/{digest}")
    assert (got.content, got.headers["etag"]) == (data, f'"{digest}"')
    head = world.client.head(f"/v1/blobs/{digest}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(data))


@pytest.mark.parametrize(
    "path",
    ["/v1/blobs/{digest}", "/v1/adapters/{ns}/{name}/files/{file}", "/{ns}/{name}/resolve/{revision}/{path}"],
)
def test_the_document_has_the_statuses_of_a_download(world: World, path: str) -> None:
    responses = world.app.openapi()["paths"][path]["get"]["responses"]
    assert responses.keys() - {"307"} == {"200", "206", "304", "default"}
    assert responses["200"]["content"].keys() == responses["206"]["content"].keys() == {"application/octet-stream"}


def test_an_upload_that_breaks_off_leaves_nothing(live: Live) -> None:
    files_before = stored_files(live.world)
    data = b"x" * 100_000
    digest = sha256_digest(data)
    connection = half_sent(live, "PUT", f"/v1/blobs/{digest}", data[:50_000], of=len(data))
    until(lambda: len(stored_files(live.world) - files_before) == 1, "the start of the upload")
    connection.close()
    assert live.world.client.head(f"/v1/blobs/{digest}").status_code == 404
    # a whole upload afterwards works, and only it is there once the server has seen that the first one is over
    assert live.world.client.put(f"/v1/blobs/{digest}", content=data).status_code == 201
    until(lambda: len(stored_files(live.world) - files_before) == 1, "the end of the upload")


def test_beyond_the_limit_is_413_with_and_without_a_length(world: World) -> None:
    files_before = stored_files(world)
    data = b"x" * (SETTINGS["max_blob_bytes"] + 1)
    path = f"/v1/blobs/{sha256_digest(data)}"
    for content in (data, iter([data[:500], data[500:]])):
        assert world.client.put(path, content=content).status_code == 413
    assert stored_files(world) == files_before
    assert world.client.put(f"/v1/blobs/{sha256_digest(data[:-1])}", content=data[:-1]).status_code == 201


def test_a_length_that_is_a_lie_is_refused(world: World) -> None:
    data = b"four"
    digest = sha256_digest(data)
    assert world.client.put(f"/v1/blobs/{digest}", content=data, headers={"content-length": "5"}).status_code == 400
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 404


def test_naming_the_digest_of_a_foreign_blob_is_not_having_its_bytes(world: World) -> None:
    ours = world.headers(world.key(["read", "write"], ["ours"]))
    theirs = world.headers(world.key(["read", "write"], ["theirs"]))
    data = b"private weights"
    path = f"/v1/blobs/{sha256_digest(data)}"
    assert world.client.put(path, content=data, headers=ours).status_code == 201
    for more in ({}, {"range": "bytes=0-1"}, {"if-none-match": "*"}):
        assert world.client.get(path, headers={**theirs, **more}).status_code == 404
    assert world.client.put(path, content=b"", headers=theirs).status_code == 400
    assert world.client.get(path, headers=theirs).status_code == 404
    assert world.client.put(path, content=data, headers=theirs).status_code == 201
    assert world.client.get(path, headers=theirs).content == data


# --- damaged --------------------------------------------------------------------------------------


def place(world: World, digest: str) -> Path:
    """The file of a blob."""
    return world.runtime.settings.blobs_dir / digest[7:9] / digest[7:]


def uploaded(world: World, data: bytes) -> str:
    digest = sha256_digest(data)
    assert world.client.put(f"/v1/blobs/{digest}", content=data).status_code in (200, 201)
    return digest


def check_damaged(answer: Any, digest: str) -> None:
    """An answer is our mistake, and says which blob it is about."""
    assert digest in refusal_with_code(answer, 500, "damaged_blob")
    assert answer.json()["error"]["type"] == "server_error"


def repairs(world: World) -> list[str]:
    entries = world.client.get("/v1/audit", params={"limit": 100}).json()["data"]
    return [entry["subject"] for entry in entries if entry["action"] == "blob.repair"]


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=0-9"}, {"range": "bytes=-1"}])
def test_a_download_is_refused_before_its_first_byte(world: World, headers: dict[str, str]) -> None:
    data = b"%d" % len(str(headers)) * 300_000
    digest = uploaded(world, data)
    path = f"/v1/blobs/{digest}"
    assert world.client.get(path, headers=headers).status_code == (206 if headers else 200)
    flip(place(world, digest))
    check_damaged(world.client.get(path, headers=headers), digest)
    head = world.client.head(path)
    assert (head.status_code, head.content) == (500, b"")
    uploaded(world, data)
    whole = world.client.get(path)
    assert (whole.status_code, whole.content, whole.headers["etag"]) == (200, data, f'"{digest}"')


def test_a_blob_that_the_database_names_and_the_folder_lacks_is_no_404(world: World) -> None:
    digest = uploaded(world, b"to be lost")
    place(world, digest).unlink()
    check_damaged(world.client.get(f"/v1/blobs/{digest}"), digest)
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 500
    foreign = world.client.get(f"/v1/blobs/{digest}", headers=world.headers(world.key(["read", "write"], ["other"])))
    assert foreign.status_code == 404  # who does not see it is told nothing
    uploaded(world, b"to be lost")
    assert world.client.get(f"/v1/blobs/{digest}").content == b"to be lost"


def test_an_upload_of_the_right_bytes_repairs_and_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    data = b"right bytes" * 1000
    digest = uploaded(world, data)
    flip(place(world, digest))
    assert world.client.put(f"/v1/blobs/{digest}", content=b"wrong" * 2200).status_code == 400
    check_damaged(world.client.get(f"/v1/blobs/{digest}"), digest)
    with caplog.at_level(logging.WARNING, "soup.blobs"):
        for _ in range(2):
            uploaded(world, data)
    assert place(world, digest).read_bytes() == data
    assert repairs(world).count(digest) == 1
    assert [message for message in caplog.messages if digest in message] == [
        f"blob {digest} was damaged: the right bytes were sent again and have replaced it"
    ]


def test_the_weights_of_an_adapter(world: World) -> None:
    digest = world.push("acme/law", seed=1)["weights_blob"]
    files = "/v1/adapters/acme/law/files"
    flip(place(world, digest))
    for path in (files, f"{files}/adapter_model.safetensors"):
        check_damaged(world.client.get(path), digest)
    check_damaged(
        world.client.post("/v1/completions", json={"model": "acme/law", "prompt": "a", "max_tokens": 1}), digest
    )
    check_damaged(world.client.post("/v1/perplexity", json={"model": "acme/law", "texts": ["a text"]}), digest)
    world.push("acme/law", seed=1)  # known already: its bytes come again
    assert repairs(world).count(digest) == 1
    assert world.client.get(f"{files}/adapter_model.safetensors").content == adapter_weights(world.runtime, seed=1)
    answered(world.client.post("/v1/completions", json={"model": "acme/law", "prompt": "a", "max_tokens": 1}))
