"""Blobs over HTTP: verified, bounded, private to who uploaded them, and gone without a trace when they fail."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.postgres import KINDS
from tests.service.cluster import until
from tests.service.servers import BASE_ID, Live, World, open_world, write_bases

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def stored_files(world: World) -> set[str]:
    return {path.name for path in world.runtime.settings.blobs_dir.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def small(
    tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory, database_settings: dict[str, Any]
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("small")
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    settings = {**database_settings, "accept_database": True}  # the database of `world`, over a folder of its own
    yield from open_world(folder / "data", bases, **settings, max_blob_bytes=1000, preload=False)


def test_up_and_down(world: World) -> None:
    data = bytes(range(256)) * 9000  # more than one buffer
    digest = digest_of(data)
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 404
    first = world.client.put(f"/v1/blobs/{digest}", content=data)
    assert first.status_code == 201
    assert first.json() == {"object": "blob", "digest": digest, "size": len(data)}
    assert first.headers["location"] == f"/v1/blobs/{digest}"
    assert world.client.put(f"/v1/blobs/{digest}", content=data).status_code == 200
    got = world.client.get(f"/v1/blobs/{digest}")
    assert got.content == data
    assert got.headers["etag"] == f'"{digest}"'
    head = world.client.head(f"/v1/blobs/{digest}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(data))
    part = world.client.get(f"/v1/blobs/{digest}", headers={"range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, data[100:200])
    assert world.client.get(f"/v1/blobs/{digest}", headers={"range": f"bytes={len(data)}-"}).status_code == 416
    assert world.client.get(f"/v1/blobs/{digest}", headers={"if-none-match": got.headers["etag"]}).status_code == 304


def test_an_empty_blob(world: World) -> None:
    digest = digest_of(b"")
    assert world.client.put(f"/v1/blobs/{digest}", content=b"").status_code == 201
    assert world.client.get(f"/v1/blobs/{digest}").content == b""


def test_a_body_in_chunks_without_a_length(world: World) -> None:
    pieces = [b"a" * 700_000, b"b" * 700_000, b"c"]
    digest = digest_of(b"".join(pieces))
    assert world.client.put(f"/v1/blobs/{digest}", content=iter(pieces)).status_code == 201
    assert world.client.get(f"/v1/blobs/{digest}").content == b"".join(pieces)


def test_a_wrong_digest_leaves_nothing(world: World) -> None:
    before = stored_files(world)
    digest = digest_of(b"expected")
    answer = world.client.put(f"/v1/blobs/{digest}", content=b"something else")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "digest_mismatch"
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 404
    assert stored_files(world) == before


def test_an_upload_that_breaks_off_leaves_nothing(live: Live) -> None:
    before = stored_files(live.world)
    data = b"x" * 100_000
    digest = digest_of(data)
    connection = http.client.HTTPConnection(urlsplit(live.url).netloc)
    connection.putrequest("PUT", f"/v1/blobs/{digest}")
    connection.putheader("authorization", f"Bearer {live.world.admin}")
    connection.putheader("content-length", str(len(data)))
    connection.endheaders()
    connection.send(data[:50_000])
    connection.close()
    assert live.world.client.head(f"/v1/blobs/{digest}").status_code == 404
    # a whole upload afterwards works, and only it is there once the server has seen that the first one is over
    assert live.world.client.put(f"/v1/blobs/{digest}", content=data).status_code == 201
    until(lambda: len(stored_files(live.world) - before) == 1, "the end of the upload")


def test_beyond_the_limit_is_413_with_and_without_a_length(small: World) -> None:
    before = stored_files(small)
    data = b"x" * 1001
    digest = digest_of(data)
    assert small.client.put(f"/v1/blobs/{digest}", content=data).status_code == 413
    assert small.client.put(f"/v1/blobs/{digest}", content=iter([data[:500], data[500:]])).status_code == 413
    assert stored_files(small) == before
    assert small.client.put(f"/v1/blobs/{digest_of(data[:1000])}", content=data[:1000]).status_code == 201


def test_a_length_that_is_a_lie_is_refused(world: World) -> None:
    data = b"four"
    digest = digest_of(data)
    answer = world.client.put(f"/v1/blobs/{digest}", content=data, headers={"content-length": "5"})
    assert answer.status_code == 400
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 404


def test_foreign_and_unknown_blobs_look_the_same(world: World) -> None:
    ours = world.headers(world.key(["read", "write"], ["ours"]))
    theirs = world.headers(world.key(["read", "write"], ["theirs"]))
    data = b"private weights"
    path = f"/v1/blobs/{digest_of(data)}"
    unknown = f"/v1/blobs/{digest_of(b'unknown')}"
    assert world.client.put(path, content=data, headers=ours).status_code == 201
    assert world.client.get(path, headers=ours).content == data
    foreign, missing = world.client.get(path, headers=theirs), world.client.get(unknown, headers=theirs)
    assert (foreign.status_code, foreign.json()) == (missing.status_code, missing.json()) == (404, foreign.json())
    assert world.client.head(path, headers=theirs).status_code == 404
    assert world.client.get(path, headers={**theirs, "range": "bytes=0-1"}).status_code == 404
    assert world.client.get(path, headers={**theirs, "if-none-match": "*"}).status_code == 404
    # naming the digest is not having the bytes
    assert world.client.put(path, content=b"", headers=theirs).status_code == 400
    assert world.client.get(path, headers=theirs).status_code == 404
    assert world.client.put(path, content=data, headers=theirs).status_code == 201
    assert world.client.get(path, headers=theirs).content == data


def test_scopes(world: World) -> None:
    data = b"scoped"
    path = f"/v1/blobs/{digest_of(data)}"
    reader = world.headers(world.key(["read"], ["scoped"]))
    writer = world.headers(world.key(["write"], ["scoped"]))
    assert world.client.put(path, content=data, headers=reader).status_code == 403
    assert world.client.put(path, content=data, headers=writer).status_code == 201
    assert world.client.head(path, headers=writer).status_code == 200
    assert world.client.get(path, headers=writer).status_code == 403
    assert world.client.get(path, headers=reader).status_code == 200
    assert world.client.head(path, headers=world.headers(world.key(["infer"], ["scoped"]))).status_code == 403


def test_who_has_no_key_is_answered_before_the_body_is_sent(live: Live) -> None:
    connection = http.client.HTTPConnection(urlsplit(live.url).netloc, timeout=30)
    connection.putrequest("PUT", f"/v1/blobs/{digest_of(b'x')}")
    connection.putheader("authorization", "Bearer sk-soup-" + "x" * 43)
    connection.putheader("content-length", "1000000")
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 401
    answer.close()
    connection.close()
