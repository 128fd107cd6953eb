"""Every blob store keeps the contract, and laws that hold for those that are fast enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from registry.blobs import BlobStore, LocalBlobs
from registry.blobs.contract import hex_of
from registry.blobs.objects import ObjectBlobs
from registry.errors import DigestMismatch, InvalidName
from registry.names import sha256_digest
from tests.object_store import ObjectStore, object_blobs
from tests.registry.blobs.contract import BlobStoreContract
from tests.registry.damaged_files import overwrite

FAST: dict[str, Callable[[Path], BlobStore]] = {
    "local": lambda folder: LocalBlobs(folder / "blobs"),
    "objects in a folder": lambda folder: object_blobs(f"file://{folder}/bucket", folder),
}
"""Stores that are fast enough for laws."""
HELLO = sha256_digest(b"hello")
NO_DIGESTS = [
    "",
    "hello",
    "sha256:",
    HELLO[7:],
    HELLO.upper(),
    HELLO.replace("sha256", "sha512"),
    HELLO + "\n",
    " " + HELLO,
    HELLO[:-1],
    HELLO + "0",
    HELLO[:-1] + "g",
    HELLO[:-1] + "١",
    "sha256:../../../../etc/passwd",
    "sha256:" + "../" * 21 + "a",
    "sha256:" + "/" * 64,
    "sha256:" + "\0" * 64,
]


class TestLocalBlobs(BlobStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(tmp_path / "blobs")

    def damage(self, store: LocalBlobs, digest: str, data: bytes) -> None:
        overwrite(store.place(digest), data)


class TestObjectBlobs(BlobStoreContract):
    @pytest.fixture
    def store(self, object_store: ObjectStore, tmp_path: Path) -> ObjectBlobs:
        return object_blobs(object_store.bucket(), tmp_path)

    def damage(self, store: ObjectBlobs, digest: str, data: bytes) -> None:
        store._bucket.put(f"{digest[7:9]}/{digest[7:]}", data, len(data))
        store._cache.remove(digest)  # else this server's copy would do


@pytest.mark.parametrize("text", NO_DIGESTS)
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        hex_of(text)


@pytest.mark.parametrize("name", FAST)
@given(chunks=st.lists(st.binary(max_size=40), max_size=8), cut=st.integers(0, 8))
def test_any_chunks_are_their_sum_and_half_of_them_are_nothing(name, tmp_path_factory, chunks, cut):
    store = FAST[name](tmp_path_factory.mktemp("law"))
    data = b"".join(chunks)
    digest = sha256_digest(data)
    with store.writer(digest, max_bytes=len(data)) as writer:
        for chunk in chunks[:cut]:
            writer.write(chunk)
        if b"".join(chunks[:cut]) != data:
            with pytest.raises(DigestMismatch):
                writer.commit()
    assert not store.has(digest)
    with store.writer(digest, max_bytes=len(data), length=len(data)) as writer:
        for chunk in chunks:
            writer.write(chunk)
        writer.commit()
    assert (store.read(digest), store.size(digest), list(store.digests())) == (data, len(data), [digest])


class StoresAreSets(RuleBasedStateMachine):
    """Whatever is done to it, a store is the set of what was put and not deleted."""

    name = ""
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.store = FAST[self.name](self.folder / str(id(self)))
        for digest in list(self.store.digests()):
            self.store.delete(digest)
        self.model: dict[str, bytes] = {}

    blobs = st.sampled_from([b"", b"a", b"b", b"ab", b"hello"])

    @rule(data=blobs)
    def put(self, data: bytes) -> None:
        self.model[self.store.put_bytes(data)] = data

    @rule(data=blobs, committed=st.booleans())
    def upload(self, data: bytes, committed: bool) -> None:
        digest = sha256_digest(data)
        with self.store.writer(digest, max_bytes=10) as writer:
            writer.write(data)
            if committed:
                writer.commit()
                self.model[digest] = data

    @rule(data=blobs)
    def delete(self, data: bytes) -> None:
        self.store.delete(sha256_digest(data))
        self.model.pop(sha256_digest(data), None)

    @invariant()
    def is_the_model(self) -> None:
        assert sorted(self.store.digests()) == sorted(filter(self.store.has, self.model))
        stored = {digest: (self.store.size(digest), self.store.read(digest)) for digest in self.model}
        assert stored == {sha256_digest(data): (len(data), data) for data in self.model.values()}


@pytest.mark.parametrize("store_name", FAST)
def test_stores_are_sets(store_name, tmp_path):
    machine = type(f"Stores{store_name}", (StoresAreSets,), {"name": store_name, "folder": tmp_path})
    machine.TestCase.settings = settings(max_examples=12, stateful_step_count=12)
    machine.TestCase().runTest()
