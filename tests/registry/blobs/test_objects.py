"""Blobs in an object store beyond the conformance class: the cache, stores that fail, large objects."""

from __future__ import annotations

import logging
import os
from itertools import cycle
from pathlib import Path

import pytest

from registry.blobs import bucket, open_blobs
from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.objects import ObjectBlobs
from registry.errors import DamagedBlob, Unavailable
from registry.names import sha256_digest
from registry.spec import BlobPlace, StoreMark
from tests.object_store import Fault, FaultHandler, FaultProxy, ObjectStore, hidden, object_blobs
from tests.registry.blobs.contract import write
from tests.registry.damaged_files import overwrite
from tests.registry.together import together

HELLO = sha256_digest(b"hello")
MARK = StoreMark(store="0" * 32, generation=1)
SECRET = "secret-of-the-store"


@pytest.fixture
def url(object_store: ObjectStore) -> str:
    return object_store.bucket()


@pytest.fixture
def store(url: str, tmp_path: Path) -> ObjectBlobs:
    """A store as a server has it: with a mark, and one blob."""
    store = object_blobs(url, tmp_path)
    store.set_aside.set_mark(MARK)
    store.put_bytes(b"hello")
    return store


@pytest.fixture
def faulty(proxy: FaultProxy, url: str, tmp_path: Path) -> ObjectBlobs:
    """The store behind a proxy, with a blob that is not in the cache."""
    first = object_blobs(url, tmp_path / "first")
    first.set_aside.set_mark(MARK)
    first.put_bytes(b"hello")
    store = object_blobs(url, tmp_path / "second", seconds=2.0)
    store.check()
    proxy.requests.clear()
    return store


def cached(store: ObjectBlobs) -> list[str]:
    folder = store.folder.parent / "cache"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def place(store: ObjectBlobs, digest: str) -> Path:
    return store.folder.parent / "cache" / digest[7:]


class TestTheCache:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A folder in the place of a bucket: the cache is the same."""
        return f"file://{tmp_path}/bucket"

    def test_what_is_there_needs_no_store(self, store):
        Bucket(store.location, seconds=5.0).delete(f"{HELLO[7:9]}/{HELLO[7:]}")
        assert store.read(HELLO) == b"hello"
        assert not store.has(HELLO)
        assert not store.is_whole(HELLO)
        with pytest.raises(DamagedBlob, match="is missing"):
            hidden(store).read(HELLO)

    def test_a_file_that_became_another_is_fetched_again_also_after_a_restart(self, store, tmp_path):
        assert cached(store) == [HELLO[7:]]
        for reader in (store, object_blobs(store.location, tmp_path)):
            overwrite(place(store, HELLO), b"hellO")
            assert reader.read(HELLO) == b"hello"
            assert place(store, HELLO).read_bytes() == b"hello"

    def test_it_may_be_deleted_while_it_is_used(self, store):
        with store.open(HELLO) as file:
            place(store, HELLO).unlink()
            place(store, HELLO).parent.rmdir()
            assert file.read() == b"hello"
        assert store.read(HELLO) == b"hello"
        assert store.read(store.put_bytes(b"more")) == b"more"

    def test_it_holds_no_more_than_it_may_and_drops_what_was_used_least_recently(self, url, tmp_path):
        store = object_blobs(url, tmp_path, most=250)
        blobs = [store.put_bytes(bytes([number]) * 100) for number in range(2)]
        assert store.read(blobs[0]) == b"\0" * 100
        blobs.append(store.put_bytes(b"\2" * 100))
        assert cached(store) == sorted(digest[7:] for digest in (blobs[0], blobs[2]))
        assert [store.read(digest)[:1] for digest in blobs] == [b"\0", b"\1", b"\2"]

    def test_its_folder_is_looked_at_now_and_then_and_not_for_every_blob(self, url, tmp_path, monkeypatch):
        store, evictions = object_blobs(url, tmp_path, most=1000), []
        evict = BlobCache._evict
        monkeypatch.setattr(BlobCache, "_evict", lambda cache: (evictions.append(cache), evict(cache)))
        blobs = [store.put_bytes(bytes([number]) * 25) for number in range(60)]
        names = cached(store)
        assert 35 <= len(names) <= 40
        assert names == sorted(digest[7:] for digest in blobs[-len(names) :])
        assert len(evictions) <= 1 + 1500 // 125
        for path in list((store.folder.parent / "cache").iterdir()):
            path.unlink()
        assert store.read(blobs[0]) == b"\0" * 25
        assert cached(store) == [blobs[0][7:]]

    def test_what_another_process_left_there_counts(self, url, tmp_path):
        first = object_blobs(url, tmp_path, most=250)
        old = [first.put_bytes(bytes([number]) * 100) for number in range(2)]
        reopened = object_blobs(url, tmp_path, most=250)
        new = reopened.put_bytes(b"\2" * 100)
        assert len(cached(reopened)) == 2
        assert new[7:] in cached(reopened)
        assert [reopened.read(digest)[:1] for digest in old] == [b"\0", b"\1"]

    def test_one_that_is_larger_than_it_may_hold_is_read_all_the_same(self, url, tmp_path):
        store = object_blobs(url, tmp_path, most=10)
        digest = store.put_bytes(b"x" * 100)
        for _ in range(2):
            with store.open(digest) as file:
                file.seek(90)
                assert file.read() == b"x" * 10
        assert cached(store) == []

    def test_a_cache_that_cannot_be_written_says_so(self, store, tmp_path):
        uncached = hidden(store)
        (uncached.folder.parent / "cache").write_text("")
        with pytest.raises(Unavailable, match="cache of blobs cannot be written"):
            uncached.read(HELLO)


# --- the cache's folder beside other processes ------------------------------------------------------

VERIFIED = b"bytes that were just verified"
VERIFIED_DIGEST = sha256_digest(VERIFIED)


def keep_verified(cache: BlobCache) -> None:
    """Have the cache keep a verified file."""
    with cache.temporary_file(VERIFIED_DIGEST) as (path, file):
        file.write(VERIFIED)
        file.flush()
        cache.keep(path, file, VERIFIED_DIGEST)


def test_what_was_kept_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlobCache(tmp_path / "cache", 2**20)
    keep_verified(cache)
    monkeypatch.setattr("registry.blobs.cache.hashlib.file_digest", None)  # it is not hashed again
    reader = cache.open(VERIFIED_DIGEST)
    with reader:
        assert reader.read() == VERIFIED


def test_what_another_process_puts_in_its_place_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the name and the first look at it."""
    cache, replace = BlobCache(tmp_path / "cache", 2**20), Path.replace

    def replaced(path: Path, target: Path) -> Path:
        renamed = replace(path, target)
        (tmp_path / "other").write_bytes(b"other bytes, of the same name")
        replace(tmp_path / "other", target)
        return renamed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replaced)
        keep_verified(cache)
    assert cache.open(VERIFIED_DIGEST) is None


def answered(status: int, code: str) -> Fault:
    """A fault that answers every request like this."""

    def fault(request: FaultHandler) -> bool:
        request.answer(status, {"content-type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())
        return True

    return fault


def once(fault: Fault, times: int = 1, *, of: str = "") -> Fault:
    """A fault of the first requests that have these words in their line."""
    remaining = [times]

    def first(request: FaultHandler) -> bool:
        if of not in f"{request.command} {request.path}" or not remaining[0]:
            return False
        remaining[0] -= 1
        return fault(request)

    return first


def hanging(request: FaultHandler) -> bool:
    request.proxy.closed.wait(60)
    request.close_connection = True
    return True


def lost(request: FaultHandler) -> bool:
    """The server does what it is asked, and nobody hears of it."""
    request.forwarded()
    request.close_connection = True
    return True


def other_bytes(request: FaultHandler) -> bool:
    status, headers, data = request.forwarded()
    request.answer(status, headers, bytes(255 - byte for byte in data))
    return True


def cut(request: FaultHandler) -> bool:
    status, headers, data = request.forwarded()
    request.answer(status, headers, data, cut=len(data) // 2)
    return True


PASSING = {"503": answered(503, "SlowDown"), "500": answered(500, "InternalError"), "hangs": hanging, "lost": lost}


# --- stores that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize(("request_line", "fault"), [*zip(cycle(["PUT", "HEAD", "GET"]), PASSING)])
def test_what_passes_is_tried_again(proxy, faulty, fault, request_line):
    proxy.fault = once(PASSING[fault], of=request_line)
    more = faulty.put_bytes(b"more")
    proxy.fault = once(PASSING[fault], of=request_line)
    assert faulty.read(HELLO) == b"hello"
    assert hidden(faulty).read(more) == b"more"
    assert not faulty.is_failing


@pytest.mark.parametrize(
    ("fault", "problem", "words"),
    [
        (answered(503, "SlowDown"), "does not answer", "does not answer, or not whole: try again later"),
        (answered(403, "SignatureDoesNotMatch"), "refuses the server", "refuses the server's credentials"),
        (answered(404, "NoSuchBucket"), "is gone", "There is no bucket for"),
    ],
    ids=["503", "403", "404"],
)
def test_what_does_not_pass_is_told_and_over_by_itself(proxy, faulty, caplog, fault, problem, words):
    digest = faulty.put_bytes(b"kept")
    proxy.fault = fault
    with caplog.at_level(logging.INFO, "soup.blobs"):
        for use in (
            lambda: faulty.put_bytes(b"more"),
            lambda: faulty.read(HELLO),
            lambda: faulty.size(HELLO),
            lambda: faulty.has(HELLO),
            lambda: faulty.is_whole(HELLO),
            lambda: faulty.delete(HELLO),
            lambda: list(faulty.digests()),
            lambda: faulty.check(),
        ):
            with pytest.raises(Unavailable, match=words) as caught:
                use()
            assert faulty.location in caught.value.message
            assert SECRET not in caught.value.message
            assert "127.0.0.1" not in caught.value.message
        assert faulty.read(digest) == b"kept"
        assert (faulty.probe(), faulty.is_failing) == (problem, True)
        proxy.fault = None
        assert faulty.probe() is None
    records = [record for record in caplog.records if record.name == "soup.blobs"]  # the S3 server tells more
    assert [record.levelname for record in records] == ["WARNING", "INFO"]
    assert SECRET not in caplog.text
    assert not faulty.is_failing
    assert faulty.read(HELLO) == b"hello"
    assert sorted(faulty.digests()) == sorted([HELLO, digest])
    assert list((faulty.folder / "incoming").iterdir()) == []


@pytest.mark.parametrize("fault", [hanging, lost])
def test_one_that_does_not_answer_is_told_and_over_by_itself(proxy, faulty, fault):
    proxy.fault = fault
    for use in (lambda: faulty.put_bytes(b"more"), lambda: faulty.read(HELLO)):
        with pytest.raises(Unavailable, match="does not answer"):
            use()
    assert (faulty.probe(), faulty.is_failing) == ("does not answer", True)
    proxy.fault = None
    assert faulty.probe() is None
    assert faulty.read(HELLO) == b"hello"


def test_nobody_waits_for_a_store_that_is_known_to_be_away(proxy, faulty):
    proxy.fault = answered(503, "SlowDown")
    with pytest.raises(Unavailable):
        faulty.has(HELLO)
    first = len(proxy.requests)
    with pytest.raises(Unavailable):
        faulty.has(HELLO)
    assert len(proxy.requests) - first == 1 < first


def test_reading_does_not_make_writing_well(proxy, faulty):
    proxy.fault = once(answered(403, "AccessDenied"), 100, of="PUT")
    with pytest.raises(Unavailable, match="refuses"):
        faulty.put_bytes(b"more")
    assert faulty.read(HELLO) == b"hello"
    assert (faulty.is_failing, faulty.probe()) == (True, "refuses the server")
    proxy.fault = None
    faulty.put_bytes(b"more")
    assert not faulty.is_failing


@pytest.mark.parametrize("fault", [other_bytes, cut])
def test_a_wrong_answer_is_not_believed(proxy, faulty, fault):
    proxy.fault = once(fault, 2, of="GET")
    assert faulty.read(HELLO) == b"hello"


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [(other_bytes, DamagedBlob, "is damaged: the 5 bytes"), (cut, Unavailable, "or not whole")],
)
def test_a_wrong_answer_each_time_is_told_and_not_kept(proxy, faulty, fault, error, words):
    proxy.fault = once(fault, 1000, of=f"GET /{faulty.location[5:]}/{HELLO[7:9]}")
    with pytest.raises(error, match=words):
        faulty.read(HELLO)
    assert cached(faulty) == []
    proxy.fault = None
    assert faulty.read(HELLO) == b"hello"


def test_a_damaged_blob_that_this_server_stored_itself_is_sent_again(proxy, faulty):
    digest = faulty.put_bytes(b"mine!")
    place(faulty, digest).unlink()
    proxy.fault = once(other_bytes, 1000, of=f"GET /{faulty.location[5:]}/{digest[7:9]}")
    with pytest.raises(DamagedBlob):
        faulty.read(digest)
    assert not faulty.is_whole(digest)
    proxy.requests.clear()
    assert faulty.put_bytes(b"mine!") == digest
    assert any(line.startswith("PUT") and digest[7:] in line for line in proxy.requests)


# --- the bucket -----------------------------------------------------------------------------------


def test_one_that_vanishes_and_comes_back(store, object_store):
    name, client = store.location.split("/")[2], Bucket(store.location, seconds=5.0)
    store.delete(HELLO)
    client.delete("store.json")
    object_store.request("DELETE", name)
    for use in (lambda: store.put_bytes(b"more"), lambda: store.has(HELLO), lambda: store.read(HELLO)):
        with pytest.raises(Unavailable, match="There is no bucket for"):
            use()
    assert store.probe() == "is gone"
    object_store.request("PUT", name)
    with pytest.raises(Unavailable, match=r"its store.json is missing or another's"):
        store.put_bytes(b"more")
    assert store.probe() == "is another one"
    data = MARK.model_dump_json().encode()
    client.put("store.json", data, len(data))
    assert store.probe() is None
    assert store.read(store.put_bytes(b"hello")) == b"hello"


def test_another_servers_is_not_written(store):
    object_blobs(store.location, store.folder / "other").set_aside.set_mark(StoreMark(store="1" * 32, generation=1))
    for use in (lambda: store.put_bytes(b"more"), lambda: store.delete(HELLO)):
        with pytest.raises(Unavailable, match="missing or another's"):
            use()
    assert hidden(store).read(HELLO) == b"hello"


def test_looking_leaves_nothing_behind(store):
    keys = store._bucket.list_keys()
    assert store.probe() is None
    assert store._bucket.list_keys() == keys


def test_the_same_bytes_are_sent_once_by_one_server(proxy, faulty):
    faulty.put_bytes(b"more")
    proxy.requests.clear()
    faulty.put_bytes(b"more")
    write(faulty, b"more")
    assert not [line for line in proxy.requests if line.startswith(("PUT", "POST"))]


def test_a_url_that_the_library_does_not_take(monkeypatch):
    """Stores of other schemes find out when they are asked."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(Unavailable, match="az://bucket/prefix cannot be opened as an object store"):
        Bucket("az://bucket/prefix", seconds=1.0)
    assert Bucket("gs://bucket/prefix/", seconds=1.0).name == "gs://bucket/prefix"


def test_a_process_of_a_server_opens_the_same(store, tmp_path):
    place = BlobPlace(folder=store.folder, url=store.location, cache=tmp_path / "cache", cache_bytes=1000)
    child = open_blobs(BlobPlace.model_validate_json(place.model_dump_json()), make=False)
    assert child.read(HELLO) == b"hello"
    with child.scratch() as file:
        assert file.parent == store.folder / "incoming"
    assert store.read(child.put_bytes(b"of the child")) == b"of the child"


class TestLargeObjects:
    """Sent in parts, and read by ranges; all sizes are a hundredth of what they are otherwise."""

    DATA = os.urandom(110_000)

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch):
        monkeypatch.setattr(bucket, "CHUNK_BYTES", 50_000)
        monkeypatch.setattr(bucket, "LARGE_BYTES", 10_000)
        monkeypatch.setattr(bucket, "SLOWEST_LINK", 1_000_000)

    def test_a_slow_link_has_longer_also_where_the_store_was_away(self, proxy, url, tmp_path, monkeypatch):
        monkeypatch.setattr(bucket, "SLOWEST_LINK", 20_000)
        store = object_blobs(url, tmp_path, seconds=4.0)  # small requests have half of it
        store.set_aside.set_mark(MARK)
        proxy.fault = answered(403, "AccessDenied")
        with pytest.raises(Unavailable):
            store.put_bytes(b"small")
        assert store.is_failing
        proxy.requests.clear()
        proxy.fault = lambda request: "partNumber=2" in request.path and request.proxy.closed.wait(2.5)
        digest = store.put_bytes(self.DATA)
        assert sum("partNumber=2" in line for line in proxy.requests) == 1
        assert not store.is_failing
        proxy.fault = None
        assert hidden(store).read(digest) == self.DATA

    def test_they_are_sent_and_read_in_parts(self, proxy, faulty):
        digest = faulty.put_bytes(self.DATA)
        assert sum("partNumber=" in line for line in proxy.requests) == 3
        proxy.requests.clear()
        with hidden(faulty).open(digest) as file:
            file.seek(70_000)
            assert file.read(100) == self.DATA[70_000:70_100]
        assert sum(line.startswith("GET") and digest[7:] in line for line in proxy.requests) == 3

    @pytest.mark.parametrize(("step", "fault"), [*zip(cycle(["uploads", "partNumber=2", "POST"]), PASSING)])
    def test_a_step_that_fails_once_is_made_up_for(self, proxy, faulty, step, fault):
        proxy.fault = once(PASSING[fault], of=step)
        digest = faulty.put_bytes(self.DATA)
        assert hidden(faulty).read(digest) == self.DATA

    @pytest.mark.parametrize("step", ["partNumber=2", "uploadId"])
    def test_one_that_was_cut_is_nothing(self, proxy, faulty, step):
        proxy.fault = once(answered(503, "SlowDown"), 1000, of=step)
        digest = sha256_digest(self.DATA)
        with pytest.raises(Unavailable, match="does not answer"):
            faulty.put_bytes(self.DATA)
        proxy.fault = None
        assert not faulty.has(digest)
        with pytest.raises(DamagedBlob, match="is missing"):
            hidden(faulty).read(digest)
        assert faulty.put_bytes(self.DATA) == digest
        assert hidden(faulty).read(digest) == self.DATA


# --- few requests ---------------------------------------------------------------------------------


def test_of_many_that_want_a_blob_one_fetches_it(proxy, faulty):
    assert together(8, lambda _: faulty.read(HELLO)) == [b"hello"] * 8
    assert len([line for line in proxy.requests if line.startswith("GET") and HELLO[7:] in line]) == 1


def test_to_ask_for_a_size_fetches_nothing(proxy, faulty):
    assert faulty.size_unverified(HELLO) == 5
    assert [line.split()[0] for line in proxy.requests] == ["HEAD"]
    assert cached(faulty) == []


def test_to_forget_many_is_as_many_requests_as_to_forget_one(proxy, faulty):
    digests = [faulty.put_bytes(bytes([number])) for number in range(5)]
    proxy.requests.clear()
    faulty.delete(digests[0])
    request_count = len(proxy.requests)
    proxy.requests.clear()
    faulty.delete_all(digests[1:])
    assert len(proxy.requests) == request_count == 3
    assert list(faulty.digests()) == [HELLO]


def test_whoever_holds_others_up_asks_once_and_not_for_long(proxy, url, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket, "HASTY_SECONDS", 0.3)
    store = object_blobs(url, tmp_path, seconds=600.0)
    digests = [store.put_bytes(bytes([number])) for number in range(2)]
    for fault in (hanging, answered(503, "SlowDown")):
        for of in ("GET", "POST"):
            proxy.requests.clear()
            proxy.fault = once(fault, 100, of=of)
            with pytest.raises(Unavailable, match="does not answer"):
                store.delete_all(digests)
            assert sum(line.startswith(of) for line in proxy.requests) == 1
    proxy.fault = None
    assert not store.is_failing, "that it was slow once says nothing"
    assert sorted(store.digests()) == sorted(digests)
    store.delete_all(digests)
    assert list(store.digests()) == []
