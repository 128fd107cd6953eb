"""The contract of blob stores as tests: a class that the tests of each store subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from registry.blobs import BlobStore
from registry.errors import DamagedBlob, DigestMismatch, Internal, InvalidName, TooLarge
from registry.names import sha256_digest
from tests.registry.together import together

HELLO = sha256_digest(b"hello")


def write(store: BlobStore, data: bytes, *, digest: str | None = None, max_bytes: int = 1000, **options: int) -> None:
    with store.writer(digest or sha256_digest(data), max_bytes=max_bytes, **options) as writer:
        for start in range(0, len(data), 2):
            writer.write(data[start : start + 2])
        writer.commit()


def holds_nothing(store: BlobStore) -> bool:
    return list(store.digests()) == [] and not store.has(HELLO)


class BlobStoreContract(ABC):
    """The behaviour of a blob store; tests of a store subclass this with `damage` and an empty `store`."""

    @abstractmethod
    def damage(self, store: BlobStore, digest: str, data: bytes) -> None:
        """Have other bytes where a blob is stored."""

    def test_what_is_opened_can_be_sought(self, store):
        store.put_bytes(b"hello")
        with store.open(HELLO) as file:
            file.seek(1)
            assert file.read(3) == b"ell"
            assert file.seek(0, 2) == 5

    def test_what_was_given_may_change_afterwards(self, store):
        data = bytearray(b"hello")
        with store.writer(HELLO, max_bytes=10) as writer:
            writer.write(data)
            data[:] = b"XXXXX"
            writer.commit()
        data[:] = b"hello"
        store.delete(HELLO)
        store.put_bytes(data)
        data[:] = b"XXXXX"
        assert store.read(HELLO) == b"hello"

    def test_nothing_is_visible_before_the_commit(self, store):
        with store.writer(HELLO, max_bytes=5) as writer:
            writer.write(b"hello")
            assert holds_nothing(store)
            writer.commit()
            assert store.has(HELLO)

    @pytest.mark.parametrize("error", [None, ZeroDivisionError])
    def test_without_a_commit_or_after_an_error_nothing_is_left(self, store, tmp_path, error):
        with pytest.raises(error) if error else nullcontext(), store.writer(HELLO, max_bytes=5) as writer:
            writer.write(b"hello")
            if error:
                raise error
        assert holds_nothing(store)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize(
        ("about", "error", "sentence"),
        [
            *(({"length": n}, DigestMismatch, f"5 bytes arrived instead of the announced {n}") for n in (0, 4, 6)),
            ({"max_bytes": 4}, TooLarge, "at most 4 bytes"),
        ],
    )
    def test_another_length_than_announced_or_allowed(self, store, about, error, sentence):
        with pytest.raises(error, match=sentence):
            write(store, b"hello", **about)
        assert holds_nothing(store)

    def test_wrong_bytes_neither_touch_nor_repair_what_is_stored(self, store):
        store.put_bytes(b"hello")
        with pytest.raises(DigestMismatch):
            write(store, b"other", digest=HELLO)
        assert store.read(HELLO) == b"hello"
        self.damage(store, HELLO, b"hellO")
        with pytest.raises(DigestMismatch):
            write(store, b"other", digest=HELLO)
        assert not store.is_whole(HELLO)

    def test_what_has_its_name_never_changes(self, store):
        with store.writer(HELLO, max_bytes=100) as writer:
            writer.write(b"hello")
            writer.commit()
            with pytest.raises(Internal):
                writer.write(b" and more")
            with pytest.raises(Internal):
                writer.commit()
        assert store.read(HELLO) == b"hello"

    def test_a_writer_is_used_inside_with(self, store):
        writer = store.writer(HELLO, max_bytes=100)
        with pytest.raises(Internal):
            writer.write(b"hello")
        with pytest.raises(Internal):
            writer.commit()
        assert holds_nothing(store)

    def test_what_is_open_can_be_read_on_after_a_delete_or_a_second_upload(self, store):
        store.put_bytes(b"hello")
        with store.open(HELLO) as first:
            write(store, b"hello")
            store.delete(HELLO)
            assert first.read() == b"hello"

    @pytest.mark.parametrize("method", ["size", "read", "open"])
    def test_missing(self, store, method):
        with pytest.raises(DamagedBlob, match=f"{HELLO} is missing"):
            getattr(store, method)(HELLO)
        assert not store.is_whole(HELLO)

    @pytest.mark.parametrize("data", [b"hellO", b"hello\n", b""])
    @pytest.mark.parametrize("method", ["size", "read", "open"])
    def test_other_bytes_than_were_stored_are_not_given(self, store, method, data):
        store.put_bytes(b"hello")
        assert store.read(HELLO) == b"hello"
        self.damage(store, HELLO, data)
        for _ in range(2):
            with pytest.raises(DamagedBlob, match=f"{HELLO} is damaged: the {len(data)} bytes .* push the file again"):
                getattr(store, method)(HELLO)
        assert (store.has(HELLO), store.is_whole(HELLO)) == (True, False)

    def test_what_was_read_and_found_damaged_has_no_size(self, store):
        store.put_bytes(b"hello")
        assert store.size_unverified(HELLO) == 5
        self.damage(store, HELLO, b"hellO")
        with pytest.raises(DamagedBlob):
            store.read(HELLO)
        with pytest.raises(DamagedBlob, match="is damaged"):
            store.size_unverified(HELLO)
        store.put_bytes(b"hello")
        assert store.size_unverified(HELLO) == 5

    def test_many_are_forgotten_at_once(self, store):
        digests = [store.put_bytes(bytes([number])) for number in range(5)]
        with pytest.raises(ZeroDivisionError):
            store.delete_all(digests, confirm=Mock(side_effect=ZeroDivisionError))
        assert sorted(store.digests()) == sorted(digests)
        store.delete_all([digests[0], sha256_digest(b"never there"), *digests[1:3]])
        assert sorted(store.digests()) == sorted(digests[3:])
        with pytest.raises(DamagedBlob, match="is missing"):
            store.size_unverified(digests[0])

    @pytest.mark.parametrize("put", [lambda store, data: store.put_bytes(data), write], ids=["put_bytes", "writer"])
    def test_the_right_bytes_repair_it(self, store, put):
        store.put_bytes(b"hello")
        self.damage(store, HELLO, b"hellO")
        put(store, b"hello")
        assert (store.read(HELLO), store.is_whole(HELLO)) == (b"hello", True)
        assert list(store.digests()) == [HELLO]

    @pytest.mark.parametrize(
        "method", ["has", "is_whole", "size", "size_unverified", "read", "open", "delete", "writer"]
    )
    def test_only_digests_are_names(self, store, method, tmp_path):
        paths = sorted(tmp_path.rglob("*"))
        options = {"max_bytes": 9} if method == "writer" else {}
        with pytest.raises(InvalidName):
            getattr(store, method)("sha256:../../../../etc/passwd", **options)
        assert sorted(tmp_path.rglob("*")) == paths

    def test_a_digest_list_survives_changes_while_it_is_read(self, store):
        stored = {store.put_bytes(bytes([number])) for number in range(5)}
        listed = set()
        for digest in store.digests():
            listed.add(digest)
            store.put_bytes(b"more" + digest.encode())
        assert stored <= listed

    def test_many_writers_of_one_blob(self, store):
        data = bytes(range(256)) * 64
        digest = sha256_digest(data)

        def upload(_: int) -> bytes:
            with store.writer(digest, max_bytes=len(data)) as writer:
                for start in range(0, len(data), 1000):
                    writer.write(data[start : start + 1000])
                writer.commit()
            return store.read(digest)

        assert together(8, upload) == [data] * 8
        assert list(store.digests()) == [digest]
