"""Uploads in parts over HTTP: what is acknowledged is kept and nothing else, whoever else sends, whatever breaks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.blobs import FileUploads
from registry.names import sha256_digest
from tests.postgres import KINDS
from tests.registry.damaged_files import overwrite
from tests.registry.refusing_disk import refuse_new_files
from tests.service.answers import refusal_with_code
from tests.service.cluster import until
from tests.service.http.exchanges import half_sent
from tests.service.servers import BASE_ID, Live, World, open_world, write_bases

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind the same
UPLOADS = "/v1/blobs/uploads"
DATA = bytes(range(256)) * 20


def opened(world: World, **body: Any) -> str:
    """The path of a new upload of the admin key."""
    answer = world.client.post(UPLOADS, json=body or None)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["location"])


def patch(world: World, path: str, data: bytes, start: int, **headers: str) -> Any:
    span = {"content-range": f"{start}-{start + len(data) - 1}", **headers}
    return world.client.patch(path, content=data, headers=span)


def begun(world: World, data: bytes) -> str:
    """The path of a new upload of the admin key that has its first bytes."""
    path = opened(world)
    patch(world, path, data, 0)
    return path


def put(world: World, path: str, data: bytes, **request: Any) -> Any:
    return world.client.put(path, params={"digest": sha256_digest(data)}, **request)


def offset(world: World, path: str) -> int:
    answer = world.client.get(path)
    assert (answer.status_code, answer.content) == (204, b"")
    return int(answer.headers["upload-offset"])


def part_files(world: World) -> set[str]:
    return {path.name for path in (world.runtime.settings.blobs_dir / "uploads").glob("*")}


def expire(world: World) -> None:
    with world.runtime.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE upload_sessions SET expires_at = 1")


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins without uploads."""
    yield
    for name in ("world", "small"):
        if name in request.fixturenames:
            world: World = request.getfixturevalue(name)
            expire(world)
            world.runtime.services.uploads.sweep()
            assert part_files(world) == set()


@pytest.fixture(scope="module")
def small(
    tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory, database_settings: dict[str, Any]
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("small")
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    limits = {"max_blob_bytes": 1000, "max_upload_bytes": 1500, "max_uploads": 3}
    options = {**database_settings, "accept_database": True}  # the database of `world`, over a folder of its own
    yield from open_world(folder / "data", bases, **options, **limits, preload=False)


# --- as it should be ------------------------------------------------------------------------------


def test_open_add_ask_finish(world: World) -> None:
    answer = world.client.post(UPLOADS)
    assert (answer.status_code, answer.json()["offset"]) == (202, 0)
    path, id = answer.headers["location"], answer.headers["upload-uuid"]
    assert (path, answer.headers["upload-offset"]) == (f"{UPLOADS}/{id}", "0")
    assert "range" not in answer.headers
    first = patch(world, path, DATA[:2000], 0)
    assert (first.status_code, first.headers["range"], first.headers["upload-offset"]) == (202, "0-1999", "2000")
    assert first.headers["location"] == path
    status = world.client.get(path)
    assert (status.status_code, status.headers["range"], status.headers["upload-uuid"]) == (204, "0-1999", id)
    assert patch(world, path, DATA[2000:], 2000).status_code == 202
    digest = sha256_digest(DATA)
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 404
    done = put(world, path, DATA)
    assert (done.status_code, done.json()) == (201, {"object": "blob", "digest": digest, "size": len(DATA)})
    assert done.headers["location"] == f"/v1/blobs/{digest}"
    assert world.client.get(done.headers["location"]).content == DATA
    refusal_with_code(world.client.get(path), 404, "not_found")
    assert part_files(world) == set()


def test_an_empty_blob(world: World) -> None:
    assert put(world, opened(world, size=0, digest=sha256_digest(b"")), b"").status_code == 201
    assert world.client.get(f"/v1/blobs/{sha256_digest(b'')}").content == b""


def test_a_list_finds_what_was_begun(world: World) -> None:
    digest = sha256_digest(b"to be found again")
    path = opened(world, digest=digest, size=17)
    opened(world)
    patch(world, path, b"to be", 0)
    uploads = world.client.get(UPLOADS, params={"digest": digest}).json()["data"]
    assert [(upload["id"], upload["offset"], upload["size"]) for upload in uploads] == [
        (path.rpartition("/")[2], 5, 17)
    ]
    assert len(world.client.get(UPLOADS).json()["data"]) == 2
    refusal_with_code(world.client.get(UPLOADS, params={"digest": "sha256:x"}), 400, "invalid_parameter")


def test_delete_gives_an_upload_up(world: World) -> None:
    path = begun(world, DATA)
    assert world.client.delete(path).status_code == 204
    assert part_files(world) == set()
    for method in ("GET", "DELETE"):
        refusal_with_code(world.client.request(method, path), 404, "not_found")
    refusal_with_code(patch(world, path, b"more", len(DATA)), 404, "not_found")
    assert part_files(world) == set()


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.sets(st.integers(1, 299), max_size=6), st.booleans())
def test_any_split_gives_the_same_blob(world: World, data: bytes, cuts: set[int], with_end: bool) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    chunks = [(start, data[start:stop]) for start, stop in pairwise(bounds) if stop > start]
    path, last = opened(world), None
    if with_end and chunks:
        last = chunks.pop()
    for start, chunk in chunks:
        assert patch(world, path, chunk, start).status_code == 202
    body = {} if last is None else {"content": last[1], "headers": {"content-range": f"{last[0]}-{len(data) - 1}"}}
    assert put(world, path, data, **body).status_code == 201
    assert world.client.get(f"/v1/blobs/{sha256_digest(data)}").content == data


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("span", ["", "0-", "bytes 0-4/5", "0-4/5", "4-0", "0 - 4", "0-4,5-9", "+0-4", "a-b"])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_part_of_an_upload_with_a_range_that_is_none_is_refused(world: World, method: str, span: str) -> None:
    path, digest = opened(world), {"digest": sha256_digest(b"01234")} if method == "PUT" else {}
    answer = world.client.request(method, path, content=b"01234", headers={"content-range": span}, params=digest)
    refusal_with_code(answer, 400, "invalid_parameter")
    assert offset(world, path) == 0


@pytest.mark.parametrize("start", [0, 9, 11])
def test_a_part_that_begins_elsewhere_is_told_the_offset(world: World, start: int) -> None:
    path = begun(world, b"0123456789")
    for answer in (
        patch(world, path, b"x", start),
        put(world, path, b"", content=b"x", headers={"content-range": f"{start}-{start}"}),
    ):
        refusal_with_code(answer, 416, "wrong_offset")
        assert (answer.headers["upload-offset"], answer.headers["range"]) == ("10", "0-9")
    assert put(world, path, b"", content=b"x").headers["upload-offset"] == "10"  # no range: all of it
    assert offset(world, path) == 10


@pytest.mark.parametrize("came", [b"0123", b"012345"])
def test_another_length_than_the_range_says(world: World, came: bytes) -> None:
    path, span = begun(world, b"ab"), {"content-range": "2-6"}
    refusal_with_code(world.client.patch(path, content=came, headers=span), 400, "invalid_parameter")
    refusal_with_code(
        world.client.patch(path, content=iter([came[:1], came[1:]]), headers=span), 400, "invalid_parameter"
    )
    refusal_with_code(put(world, path, b"", content=came, headers=span), 400, "invalid_parameter")
    assert offset(world, path) == 2
    assert patch(world, path, b"01234", 2).status_code == 202
    assert put(world, path, b"ab01234").status_code == 201


def test_another_digest_ends_the_upload(world: World) -> None:
    path = begun(world, b"these bytes")
    refusal_with_code(put(world, path, b"other bytes"), 400, "digest_mismatch")
    refusal_with_code(world.client.get(path), 404, "not_found")
    assert world.client.head(f"/v1/blobs/{sha256_digest(b'other bytes')}").status_code == 404
    assert world.client.head(f"/v1/blobs/{sha256_digest(b'these bytes')}").status_code == 404
    assert part_files(world) == set()


@pytest.mark.parametrize(("params", "code"), [({}, "invalid_parameter"), ({"digest": "sha256:x"}, "invalid_name")])
def test_an_end_without_a_digest_or_with_one_that_is_none_leaves_the_upload(
    world: World, params: dict[str, str], code: str
) -> None:
    path = begun(world, b"these bytes")
    refusal_with_code(world.client.put(path, params=params), 400, code)
    assert put(world, path, b"these bytes").status_code == 201


@pytest.mark.parametrize("body", [{"digest": "sha256:x"}, {"size": -1}, {"size": "1"}, {"more": 1}, []])
def test_what_an_upload_cannot_become_is_refused(world: World, body: Any) -> None:
    refusal_with_code(world.client.post(UPLOADS, json=body), 400, "invalid_parameter")
    assert world.client.get(UPLOADS).json()["data"] == []


# --- whose it is ----------------------------------------------------------------------------------


def test_another_key_sees_none_of_it(world: World) -> None:
    """Not even one of the same namespaces, nor the admin's."""
    mine, theirs = (world.headers(world.key(["read", "write"], ["ours"])) for _ in range(2))
    path = world.client.post(UPLOADS, headers=mine).headers["location"]
    world.client.patch(path, content=b"secret", headers={**mine, "content-range": "0-5"})
    span = {"content-range": "6-6"}
    for headers in (theirs, world.headers(world.admin)):
        for method, request in (
            ("GET", {"headers": headers}),
            ("PATCH", {"headers": {**headers, **span}, "content": b"x"}),
            ("PUT", {"headers": headers, "params": {"digest": sha256_digest(b"secret")}}),
            ("DELETE", {"headers": headers}),
        ):
            there = world.client.request(method, path, **request)
            nowhere = world.client.request(method, f"{UPLOADS}/upload-{'0' * 24}", **request)
            assert (there.status_code, there.content) == (404, nowhere.content)
            assert nowhere.status_code == 404
        assert world.client.get(UPLOADS, headers=headers).json()["data"] == []
    assert world.client.get(path, headers=mine).headers["upload-offset"] == "6"


def test_an_expired_upload_is_gone_and_swept(world: World) -> None:
    path, later = opened(world, digest=sha256_digest(DATA)), opened(world)
    patch(world, path, DATA, 0)
    expire(world)
    patch(world, later, b"x", 0)  # too late
    for answer in (world.client.get(path), patch(world, path, b"x", len(DATA)), put(world, path, DATA)):
        refusal_with_code(answer, 404, "not_found")
    assert world.client.get(UPLOADS).json()["data"] == []
    assert world.runtime.services.uploads.sweep() == 2
    assert part_files(world) == set()
    with world.runtime.database.read() as catalogue:
        assert catalogue.uploads.all_ids() == set()


def test_a_sweep_leaves_what_is_being_written_and_what_is_young(world: World) -> None:
    path, files = begun(world, b"x"), FileUploads(world.registry.blobs)
    files.folder.joinpath("upload-of-no-row").write_bytes(b"young")
    expire(world)
    with files.open(path.rpartition("/")[2]):
        assert world.runtime.services.uploads.sweep() == 0
    for file in files.folder.iterdir():
        os.utime(file, (1, 1))
    assert world.runtime.services.uploads.sweep() == 2


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_so_many_uploads_are_open_at_once(small: World) -> None:
    paths = [opened(small) for _ in range(3)]
    answer = small.client.post(UPLOADS)
    assert "3 open uploads" in refusal_with_code(answer, 429, "busy")
    assert answer.headers["retry-after"]
    assert small.client.post(UPLOADS, headers=small.headers(small.key(["write"], ["others"]))).status_code == 202
    small.client.delete(paths[0])
    assert small.client.post(UPLOADS).status_code == 202


def test_all_open_uploads_hold_so_many_bytes(small: World) -> None:
    first, second = opened(small), opened(small)
    assert patch(small, first, b"x" * 1000, 0).status_code == 202
    assert "1501 bytes; the maximum is 1500" in refusal_with_code(patch(small, second, b"x" * 501, 0), 429, "busy")
    assert patch(small, second, b"x" * 500, 0).status_code == 202
    refusal_with_code(put(small, second, b"", content=b"x", headers={"content-range": "500-500"}), 429, "busy")
    assert put(small, second, b"x" * 500).status_code == 201  # to finish takes no more room
    assert patch(small, opened(small), b"x" * 500, 0).status_code == 202


def test_what_failed_takes_no_room(small: World) -> None:
    first, second = opened(small), opened(small)
    refusal_with_code(
        small.client.patch(first, content=iter([b"x"]), headers={"content-range": "0-899"}),
        400,
        "invalid_parameter",
    )
    assert patch(small, second, b"x" * 900, 0).status_code == 202
    assert patch(small, first, b"x" * 600, 0).status_code == 202


def test_no_blob_beyond_the_limit(small: World) -> None:
    path = begun(small, b"x" * 600)
    refusal_with_code(patch(small, path, b"x" * 401, 600), 413, "too_large")
    assert offset(small, path) == 600
    assert patch(small, path, b"x" * 400, 600).status_code == 202
    small.client.delete(path)
    refusal_with_code(put(small, opened(small), b"", content=iter([b"x" * 600, b"x" * 600])), 413, "too_large")


# --- races ----------------------------------------------------------------------------------------


def test_of_two_parts_at_once_one_is_taken(world: World) -> None:
    """Each sends other bytes for the same place: those of one are there, and nothing of the others."""
    path = begun(world, b"begin")
    barrier = threading.Barrier(6)

    def send(number: int) -> Any:
        barrier.wait()
        return patch(world, path, bytes([number]) * 50_000, 5)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))
    accepted = [number for number, answer in enumerate(answers) if answer.status_code == 202]
    assert len(accepted) == 1
    for answer in answers:
        if answer.status_code != 202:
            refusal_with_code(answer, 416, "wrong_offset")
            assert answer.headers["upload-offset"] in {"5", "50005"}
    assert put(world, path, b"begin" + bytes(accepted) * 50_000).status_code == 201


def test_who_comes_while_another_writes_is_told_what_is_held(world: World) -> None:
    path = begun(world, b"begin")
    with FileUploads(world.registry.blobs).open(path.rpartition("/")[2]):
        answer = patch(world, path, b"more", 5)
        assert "Another request is writing" in refusal_with_code(answer, 416, "wrong_offset")
        assert answer.headers["upload-offset"] == "5"
        assert put(world, path, b"begin").status_code == 416
    assert put(world, path, b"begin").status_code == 201


def test_deleted_while_a_part_comes(live: Live) -> None:
    world = live.world
    path = opened(world)
    with closing(half_sent(live, "PATCH", path, b"01", of=5, content_range="0-4")) as connection:
        until(lambda: part_files(world))
        assert world.client.delete(path).status_code == 204
        connection.send(b"234")
        assert connection.getresponse().status == 404
    assert part_files(world) == set()


def test_what_came_of_a_part_that_breaks_off_is_kept(live: Live) -> None:
    world = live.world
    path, data = opened(world), DATA * 600  # some MiB
    half_sent(live, "PATCH", path, data[:1_500_000], of=len(data), content_range=f"0-{len(data) - 1}").close()
    received = until(lambda: offset(world, path))
    assert received <= 1_500_000
    assert patch(world, path, data[received:], received).status_code == 202
    assert put(world, path, data).status_code == 201


# --- disks ----------------------------------------------------------------------------------------


def test_an_upload_to_a_disk_that_takes_no_file_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = opened(world)
    with monkeypatch.context() as patched:
        refuse_new_files(patched, errno.EROFS)
        assert "is read-only" in refusal_with_code(patch(world, path, b"more", 0), 503, "unavailable")
    assert patch(world, path, b"more", 0).status_code == 202


def test_an_end_that_fails_may_be_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = begun(world, b"to be finished")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        refusal_with_code(put(world, path, b"to be finished"), 503, "unavailable")
    assert offset(world, path) == 14
    assert put(world, path, b"to be finished").status_code == 201


def test_a_folder_that_is_gone(world: World) -> None:
    path, folder = begun(world, b"held"), world.runtime.settings.blobs_dir
    folder.rename(folder.with_name("elsewhere"))
    try:
        for answer in (
            world.client.post(UPLOADS),
            world.client.get(path),
            patch(world, path, b"x", 4),
            put(world, path, b"held"),
        ):
            assert "mount it or put it back" in refusal_with_code(answer, 503, "unavailable")
    finally:
        folder.with_name("elsewhere").rename(folder)
    assert offset(world, path) == 4
    assert put(world, path, b"held").status_code == 201


def test_what_the_disk_lost_is_not_acknowledged_any_more(world: World) -> None:
    """Also after an older copy of the database was put back: the offset is what both of them hold."""
    path = begun(world, b"0123456789")
    file = world.runtime.settings.blobs_dir / "uploads" / path.rpartition("/")[2]
    os.truncate(file, 4)
    assert offset(world, path) == 4
    file.unlink()
    assert offset(world, path) == 0
    file.write_bytes(b"01234567890000")
    refusal_with_code(patch(world, path, b"x", 14), 416, "wrong_offset")
    assert put(world, path, b"0123456789").status_code == 201


def test_a_damaged_blob_is_repaired(world: World) -> None:
    data = b"damaged, and sent again in parts"
    digest = sha256_digest(data)
    assert world.client.put(f"/v1/blobs/{digest}", content=data).status_code == 201
    overwrite(world.registry.blobs.place(digest), b"something else")
    assert world.client.head(f"/v1/blobs/{digest}").status_code == 500
    path = begun(world, data[:5])
    assert put(world, path, data, content=data[5:], headers={"content-range": f"5-{len(data) - 1}"}).status_code == 201
    assert world.client.get(f"/v1/blobs/{digest}").content == data
    assert world.client.get("/v1/audit", params={"action": "blob.repair"}).json()["data"][0]["subject"] == digest
