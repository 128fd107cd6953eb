"""Uploads in parts to a bucket: any server goes on with what another began, and nothing counts but what it said."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from registry.blobs import LocalBlobs, object_uploads
from registry.blobs.bucket import Bucket
from registry.blobs.objects import ObjectBlobs
from registry.catalogue import Database
from registry.catalogue.uploads import upload_sessions
from registry.context import Caller
from registry.errors import Busy, DigestMismatch, InvalidParameter, NotFound, Unavailable, WrongOffset
from registry.names import sha256_digest
from registry.spec import StoreMark
from registry.spec.limits import UploadLimits
from registry.uploads.sessions import UploadSessions
from tests.object_store import FaultProxy, ObjectStore, object_blobs
from tests.registry.toy_registry import ToyRegistry

ON_DATABASES = ("sqlite",)  # their statements are the same on each kind
ME = Caller("key-1", None, "request-1")
DATA = bytes(range(256)) * 8
DIGEST = sha256_digest(DATA)


@dataclass
class Servers:
    """Any number of servers over one database and one bucket, each with a folder of its own."""

    verbs: ToyRegistry
    url: str
    folder: Path
    started: int = 0

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.url, seconds=5.0)

    def start(self) -> UploadSessions:
        """The uploads of a server that has seen nothing yet."""
        self.started += 1
        blobs = object_blobs(self.url, self.folder / f"server-{self.started}")
        registry = replace(self.verbs.registry, blobs=blobs)
        return UploadSessions(registry, blobs.uploads(), UploadLimits(blob_bytes=2**20))

    def begin(self, size: int = 700) -> tuple[UploadSessions, str]:
        """A server with an upload of which so many bytes have come, at most 700 a part, and the upload's id."""
        server = self.start()
        id = server.open(ME).id
        for start in range(0, size, 700):
            add(server, id, DATA[start : min(start + 700, size)], start)
        return server, id

    def unfinished(self) -> list[str]:
        """The objects of unfinished uploads."""
        return sorted(self.bucket.list_keys("unfinished"))


def servers_of(verbs: ToyRegistry, url: str, folder: Path) -> Servers:
    object_blobs(url, folder / "mark").set_aside.set_mark(StoreMark(store="0" * 32, generation=1))
    return Servers(verbs, url, folder)


@pytest.fixture
def servers(verbs: ToyRegistry, tmp_path: Path) -> Servers:
    """Their bucket is a folder."""
    return servers_of(verbs, f"file://{tmp_path}/bucket", tmp_path)


@pytest.fixture
def remote(verbs: ToyRegistry, object_store: ObjectStore, proxy: FaultProxy, tmp_path: Path) -> Servers:
    """Their bucket is behind a proxy."""
    return servers_of(verbs, object_store.bucket(), tmp_path)


def add(server: UploadSessions, id: str, data: bytes, start: int) -> int:
    """Have a server take a part; gives the offset that it acknowledges."""
    with server.open_part(ME, id, start=start, stop=start + len(data)) as writer:
        writer.write(data)
        return writer.keep().received


def finish(server: UploadSessions, id: str, data: bytes = DATA, *, start: int | None = None, last: bytes = b"") -> int:
    stop = None if start is None else start + len(last)
    with server.open_part(ME, id, start=start, stop=stop) as writer:
        if last:
            writer.write(last)
        return writer.commit(ME, sha256_digest(data))


def cached(server: UploadSessions) -> list[Path]:
    """The files of parts and blobs in the cache of a server."""
    return list((blobs_of(server).folder.parent / "cache").iterdir())


def blobs_of(server: UploadSessions) -> ObjectBlobs:
    return server._registry.blobs


def test_another_server_goes_on_and_a_third_finishes(servers: Servers) -> None:
    first, second, third = servers.start(), servers.start(), servers.start()
    id = first.open(ME, digest=DIGEST).id
    assert add(first, id, DATA[:700], 0) == 700
    assert second.get(ME, id).received == 700
    assert add(second, id, DATA[700:1500], 700) == 1500
    assert [row.received for row in third.list(ME, digest=DIGEST)] == [1500]
    assert finish(third, id, start=1500, last=DATA[1500:]) == len(DATA)
    assert blobs_of(first).read(DIGEST) == DATA
    assert servers.unfinished() == []
    for server in (first, second, third):
        with pytest.raises(NotFound):
            server.get(ME, id)


def test_what_came_here_is_not_fetched_again(remote: Servers, proxy: FaultProxy) -> None:
    (server, id), second = remote.begin(), remote.start()
    add(second, id, DATA[700:], 700)
    proxy.requests.clear()
    finish(server, id)
    fetched = [line for line in proxy.requests if line.startswith("GET") and "/unfinished/" in line]
    assert len(fetched) == 1
    assert fetched[0].endswith(sha256_digest(DATA[700:])[7:])


@pytest.mark.parametrize("second_data", [b"x" * 900, DATA[:700]], ids=["other bytes", "the same bytes"])
def test_of_two_servers_that_take_a_part_for_one_place_one_does(servers: Servers, second_data: bytes) -> None:
    (first, id), second = servers.begin(0), servers.start()
    with (
        first.open_part(ME, id, start=0, stop=700) as first_writer,
        second.open_part(ME, id, start=0, stop=len(second_data)) as second_writer,
    ):
        first_writer.write(DATA[:700])
        second_writer.write(second_data)
        assert first_writer.keep().received == 700
        with pytest.raises(WrongOffset, match="has 700 bytes") as error:
            second_writer.keep()
    assert error.value.offset == 700
    assert finish(second, id, start=700, last=DATA[700:]) == len(DATA)
    assert (blobs_of(first).read(DIGEST), servers.unfinished()) == (DATA, [])


def test_two_that_finish_at_once_store_the_same(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "soup.blobs")
    (first, id), second = servers.begin(len(DATA)), servers.start()
    with (
        first.open_part(ME, id, start=None, stop=None) as first_writer,
        second.open_part(ME, id, start=None, stop=None) as second_writer,
    ):
        assert first_writer.commit(ME, DIGEST) == len(DATA)
        with pytest.raises(NotFound):  # its parts went with the first one's end
            second_writer.commit(ME, DIGEST)
    assert not caplog.records, "nothing was lost"
    assert blobs_of(servers.start()).read(DIGEST) == DATA


def test_a_part_that_breaks_off_leaves_no_object_and_no_file(servers: Servers) -> None:
    server, id = servers.begin()

    class BrokenOffError(Exception):
        pass

    with pytest.raises(BrokenOffError), server.open_part(ME, id, start=700, stop=900) as writer:
        writer.write(DATA[700:800])
        raise BrokenOffError
    assert (server.get(ME, id).received, len(servers.unfinished())) == (700, 1)
    assert list(blobs_of(server).state.incoming.iterdir()) == []


def test_a_store_that_is_away_keeps_what_was_acknowledged(remote: Servers, proxy: FaultProxy) -> None:
    server, id = remote.begin()
    proxy.fault = lambda request: request.command == "PUT" and (request.answer(403, {}, b"") or True)
    with pytest.raises(Unavailable, match="refuses"):
        add(server, id, DATA[700:], 700)
    with pytest.raises(Unavailable, match="refuses"):
        finish(server, id, start=700, last=DATA[700:])
    proxy.fault = None
    assert server.get(ME, id).received == 700
    assert finish(server, id, start=700, last=DATA[700:]) == len(DATA)


@pytest.mark.parametrize("replacement", [None, b"other"])
def test_an_upload_whose_part_the_store_lost_ends_and_is_sent_again(
    servers: Servers, replacement: bytes | None
) -> None:
    """Also one whose part became other bytes."""
    _, id = servers.begin(2000)
    key = servers.unfinished()[1]
    servers.bucket.delete(key)
    if replacement is not None:
        servers.bucket.put(key, replacement, len(replacement))
    later = servers.start()
    with pytest.raises(NotFound, match="no longer has all the bytes"):
        finish(later, id, start=2000, last=DATA[2000:])
    assert (later.list(ME), servers.unfinished(), blobs_of(later).has(DIGEST)) == ([], [], False)


def test_of_two_of_one_server_the_second_is_refused_before_it_sends(servers: Servers) -> None:
    server, id = servers.begin(0)
    with server.open_part(ME, id, start=0, stop=700) as writer:
        writer.write(DATA[:700])
        with pytest.raises(WrongOffset, match="Another request is writing"), server.open_part(ME, id, start=0, stop=9):
            raise AssertionError("it is held")
        writer.keep()
    assert finish(server, id, start=700, last=DATA[700:]) == len(DATA)


def test_who_lost_gives_back_nothing_of_what_another_reserved(servers: Servers) -> None:
    first, second, third = servers.start(), servers.start(), servers.start()
    id, second_id = first.open(ME).id, first.open(ME).id
    for server in (first, second, third):
        server.limits = replace(server.limits, reserved_bytes=2000)
    with ExitStack() as stack:
        with pytest.raises(WrongOffset), second.open_part(ME, id, start=0, stop=700) as lost:
            lost.write(b"x" * 700)
            add(first, id, DATA[:700], 0)
            stack.enter_context(first.open_part(ME, id, start=700, stop=1900))
            lost.keep()
        with pytest.raises(Busy, match="would have 2900 bytes"):
            add(third, second_id, b"y" * 1000, 0)


def test_other_bytes_than_the_digest_says_end_the_upload(servers: Servers) -> None:
    server, id = servers.begin(0)
    add(server, id, b"other", 0)
    with pytest.raises(DigestMismatch):
        finish(server, id)
    assert (server.list(ME), servers.unfinished(), blobs_of(server).has(DIGEST)) == ([], [], False)


def test_an_expired_one_goes_with_its_objects(servers: Servers) -> None:
    (first, _), second = servers.begin(), servers.start()
    with servers.verbs.database.engine.begin() as connection:
        connection.execute(update(upload_sessions).values(expires_at=datetime.now(UTC) - timedelta(days=1)))
    young = first.open(ME).id
    add(first, young, DATA[:5], 0)
    assert (second.sweep(), first.sweep()) == (1, 0)
    assert [key.split("/")[1] for key in servers.unfinished()] == [young]


def test_one_that_is_deleted_or_expires_leaves_no_part_in_the_cache(servers: Servers) -> None:
    server, id = servers.begin()
    add(server, server.open(ME).id, DATA[:5], 0)
    assert len(cached(server)) == 2
    server.delete(ME, id)
    assert len(cached(server)) == 1
    with servers.verbs.database.engine.begin() as connection:
        connection.execute(update(upload_sessions).values(expires_at=datetime.now(UTC) - timedelta(days=1)))
    server.sweep()
    assert cached(server) == []


def test_objects_of_no_row_go_once_they_are_old(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server leaves them when it is killed between an object and its row, for an upload that then ended."""
    servers.bucket.put("unfinished/upload-of-no-row/000000000000000-" + "0" * 64, b"x", 1)
    servers.bucket.put("unfinished/thesis/chapter.txt", b"x", 1)
    server, id = servers.begin(0)
    servers.bucket.put(f"unfinished/{id}/000000000000000-" + "0" * 64, b"x", 1)
    assert server.sweep() == 0
    server.limits = replace(server.limits, lifetime=timedelta(seconds=-60))  # all that is there is old
    assert server.sweep() == 0  # it has looked a moment ago
    monkeypatch.setattr(object_uploads, "LIST_SECONDS", 0.0)
    assert server.sweep() == 1
    assert [key.split("/")[1] for key in servers.unfinished()] == ["thesis", id]


def test_a_deleted_one_takes_no_part_and_leaves_no_object(servers: Servers) -> None:
    (first, id), second = servers.begin(5), servers.start()
    with pytest.raises(NotFound), first.open_part(ME, id, start=5, stop=9) as writer:
        writer.write(DATA[5:9])
        second.delete(ME, id)
        writer.keep()
    assert servers.unfinished() == []


def test_one_that_is_deleted_before_it_is_held_leaves_no_file(verbs: ToyRegistry, tmp_path: Path) -> None:
    """In a folder, where to open an upload makes its file."""
    server = UploadSessions(verbs.registry, LocalBlobs(tmp_path / "blobs").uploads(), UploadLimits())
    id, begin = server.open(ME).id, server._begin

    def late(*arguments: Any) -> Any:
        server.delete(ME, id)
        return begin(*arguments)

    server._begin = late  # type: ignore[method-assign]
    with pytest.raises(NotFound), server.open_part(ME, id, start=0, stop=5):
        raise AssertionError("it is gone")
    assert list((tmp_path / "blobs" / "uploads").iterdir()) == []


def test_there_are_so_many_parts_at_most(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.uploads.sessions.MAX_PARTS", 2)
    server, id = servers.begin(1000)
    with pytest.raises(InvalidParameter, match="2 parts, the most") as error:
        add(server, id, DATA[1000:], 1000)
    assert error.value.param == "content-range", "clients begin another by that"
    assert finish(server, id, DATA[:1000]) == 1000


STEPS = st.tuples(st.integers(0, 1), st.sampled_from(["add", "stale", "race", "die"]), st.integers(1, 40))
"""A server, what it does, and a number of bytes."""


@given(st.lists(STEPS, max_size=8))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_servers_do_the_blob_is_what_was_acknowledged(
    database: Database, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, int]]
) -> None:
    """Over a folder that stands for a bucket."""
    folder = tmp_path_factory.mktemp("round")
    servers = servers_of(ToyRegistry(database), f"file://{folder}/bucket", folder)
    there = [servers.start(), servers.start()]
    id, received, data = there[0].open(ME).id, b"", DATA
    for which, action, size in steps:
        server = there[which]
        assert server.get(ME, id).received == len(received)
        if action == "add":
            assert add(server, id, data[len(received) : len(received) + size], len(received)) == len(received) + size
            received = data[: len(received) + size]
        elif action == "stale" and received:
            with pytest.raises(WrongOffset):
                add(server, id, b"?" * size, len(received) - 1)
        elif action == "race":  # the other server takes a part while this one does
            with server.open_part(ME, id, start=len(received), stop=len(received) + size) as slow:
                slow.write(b"?" * size)
                add(there[1 - which], id, data[len(received) : len(received) + size], len(received))
                with pytest.raises(WrongOffset):
                    slow.keep()
            received = data[: len(received) + size]
        elif action == "die":  # between the object and its row: with all that only this process knew
            with server.open_part(ME, id, start=len(received), stop=len(received) + size) as writer:
                writer.write(b"!" * size)
                writer._file.keep()
            there[which] = servers.start()
    assert finish(there[0], id, received + b"end", start=len(received), last=b"end") == len(received) + 3
    for server in there:
        assert blobs_of(server).read(sha256_digest(received + b"end")) == received + b"end"
    assert servers.unfinished() == []
