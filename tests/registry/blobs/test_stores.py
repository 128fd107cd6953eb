"""Every blob store keeps the contract, and laws that hold for those that are fast enough."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from registry.blobs import BlobStore, LocalBlobs
from registry.blobs.bucket import Bucket
from registry.blobs.contract import hex_of
from registry.blobs.objects import ObjectBlobs
from registry.errors import DigestMismatch, InvalidName, Unavailable
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


# --- signed URLs ----------------------------------------------------------------------------------


DIGEST = sha256_digest(b"hello")
KEY = f"soup/blobs/{DIGEST[7:9]}/{DIGEST[7:]}"
SECONDS = 300
SECRET = "secret-of-the-store"
Set = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets variables, and no other of these stores."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)

    def set_all(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The file of a service account's key."""
    key = generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    credentials = {
        "type": "service_account",
        "private_key": pem,
        "private_key_id": "1",
        "client_email": "soup@x.example",
    }
    (tmp_path / "account.json").write_text(json.dumps(credentials))
    return tmp_path / "account.json"


def signed(url: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Where an object is that is never asked for, as the server signs its URL, and what the URL says beside that."""
    signed_url = urlsplit(object_blobs(url, folder).signed_url(DIGEST, seconds=SECONDS))
    query = {name: value for name, [value] in parse_qs(signed_url.query, strict_parsing=True).items()}
    return f"{signed_url.scheme}://{signed_url.netloc}{signed_url.path}", query


def test_googles_is_of_the_object_and_ends(environment: Set, account: Path, tmp_path: Path) -> None:
    """https://cloud.google.com/storage/docs/access-control/signing-urls-manually, version 4."""
    environment(GOOGLE_SERVICE_ACCOUNT=str(account))
    place, query = signed("gs://team/soup/blobs", tmp_path)
    assert place == f"https://storage.googleapis.com/team/{KEY}"
    assert (query["X-Goog-Expires"], query["X-Goog-SignedHeaders"]) == (str(SECONDS), "host")
    assert query["X-Goog-Credential"].startswith("soup@x.example/")


def test_azures_is_of_the_object_for_reading_and_ends(environment: Set, tmp_path: Path) -> None:
    """https://learn.microsoft.com/rest/api/storageservices/create-service-sas, from version 2020-12-06 on."""
    environment(AZURE_STORAGE_ACCOUNT_NAME="acme", AZURE_STORAGE_ACCOUNT_KEY=base64.b64encode(b"k" * 64).decode())
    place, query = signed("az://team/soup/blobs", tmp_path)
    assert place == f"https://acme.blob.core.windows.net/team/{KEY}"
    assert (query["sp"], query["sr"]) == ("r", "b"), "read one blob"
    first, last = (datetime.fromisoformat(query[name]) for name in ("st", "se"))
    assert last - first == timedelta(seconds=SECONDS)


@pytest.mark.parametrize(
    ("url", "variables", "needed"),
    [
        ("az://team/soup", {"AZURE_STORAGE_SAS_TOKEN": f"sv=1&sig={SECRET}"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://team/soup", {"AZURE_SKIP_SIGNATURE": "true"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("gs://team/soup", {"GCE_METADATA_HOST": "127.0.0.1:9"}, "GOOGLE_SERVICE_ACCOUNT"),  # the machine has none
    ],
)
def test_credentials_that_sign_nothing_are_told_from_what_does(
    environment: Set, tmp_path: Path, url: str, variables: dict[str, str], needed: str
) -> None:
    """A server that is started with the setting hears it then, as it signs a URL before its first download."""
    environment(AZURE_STORAGE_ACCOUNT_NAME="acme", **variables)
    reason = "cannot sign URLs with its credentials, or their provider does not answer"
    sentence = rf"^{url} {reason}: give .*\({needed}\).*_PRESIGNED_SECONDS\.$"
    with pytest.raises(Unavailable, match=sentence) as refused:
        signed(url, tmp_path)
    assert SECRET not in refused.value.message


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        ("az://team/soup", {"AZURE_STORAGE_ACCOUNT_KEY": f"no base64 {SECRET}"}),
        ("gs://team/soup", {"GOOGLE_SERVICE_ACCOUNT": "/nowhere/account.json"}),
        ("gs://team/soup", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"private_key": SECRET})}),
    ],
)
def test_credentials_that_are_none_open_no_bucket(environment: Set, url: str, variables: dict[str, str]) -> None:
    environment(AZURE_STORAGE_ACCOUNT_NAME="acme", **variables)
    with pytest.raises(Unavailable, match=f"^{url} cannot be opened as an object store: see .*GOOGLE_") as refused:
        Bucket(url, seconds=2.0)
    assert SECRET not in refused.value.message
