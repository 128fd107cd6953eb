"""URLs that are signed for Google's and Azure's stores on this machine: of which object, for what, and until when.

The library answers for the signatures. S3's are tried on a server in tests/service/http/test_presigned.py. Nothing here
asks a network.
"""

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

from registry.blobs.bucket import Bucket
from registry.errors import Unavailable
from registry.names import sha256_digest
from tests.object_store import object_blobs

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

    def set_all(**said: str) -> None:
        for name, value in said.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The file of a service account's key."""
    key = generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    said = {"type": "service_account", "private_key": pem, "private_key_id": "1", "client_email": "soup@x.example"}
    (tmp_path / "account.json").write_text(json.dumps(said))
    return tmp_path / "account.json"


def signed(url: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Where an object is that is never asked for, as the server signs its URL, and what the URL says beside that."""
    parts = urlsplit(object_blobs(url, folder).signed_url(DIGEST, seconds=SECONDS))
    said = {name: value for name, [value] in parse_qs(parts.query, strict_parsing=True).items()}
    return f"{parts.scheme}://{parts.netloc}{parts.path}", said


def test_googles_is_of_the_object_and_ends(environment: Set, account: Path, tmp_path: Path) -> None:
    """https://cloud.google.com/storage/docs/access-control/signing-urls-manually, version 4."""
    environment(GOOGLE_SERVICE_ACCOUNT=str(account))
    place, said = signed("gs://team/soup/blobs", tmp_path)
    assert place == f"https://storage.googleapis.com/team/{KEY}"
    assert (said["X-Goog-Expires"], said["X-Goog-SignedHeaders"]) == (str(SECONDS), "host")
    assert said["X-Goog-Credential"].startswith("soup@x.example/")


def test_azures_is_of_the_object_for_reading_and_ends(environment: Set, tmp_path: Path) -> None:
    """https://learn.microsoft.com/rest/api/storageservices/create-service-sas, from version 2020-12-06 on."""
    environment(AZURE_STORAGE_ACCOUNT_NAME="acme", AZURE_STORAGE_ACCOUNT_KEY=base64.b64encode(b"k" * 64).decode())
    place, said = signed("az://team/soup/blobs", tmp_path)
    assert place == f"https://acme.blob.core.windows.net/team/{KEY}"
    assert (said["sp"], said["sr"]) == ("r", "b"), "read one blob"
    first, last = (datetime.fromisoformat(said[name]) for name in ("st", "se"))
    assert last - first == timedelta(seconds=SECONDS)


@pytest.mark.parametrize(
    ("url", "said", "needed"),
    [
        ("az://team/soup", {"AZURE_STORAGE_SAS_TOKEN": f"sv=1&sig={SECRET}"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://team/soup", {"AZURE_SKIP_SIGNATURE": "true"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("gs://team/soup", {"GCE_METADATA_HOST": "127.0.0.1:9"}, "GOOGLE_SERVICE_ACCOUNT"),  # the machine has none
    ],
)
def test_credentials_that_sign_nothing_are_told_from_what_does(
    environment: Set, tmp_path: Path, url: str, said: dict[str, str], needed: str
) -> None:
    """A server that is started with the setting hears it then, as it signs a URL before its first download."""
    environment(AZURE_STORAGE_ACCOUNT_NAME="acme", **said)
    why = "cannot sign URLs with its credentials, or their provider does not answer"
    sentence = rf"^{url} {why}: give .*\({needed}\).*_PRESIGNED_SECONDS\.$"
    with pytest.raises(Unavailable, match=sentence) as refused:
        signed(url, tmp_path)
    assert SECRET not in refused.value.message


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("az://team/soup", {"AZURE_STORAGE_ACCOUNT_KEY": f"no base64 {SECRET}"}),
        ("gs://team/soup", {"GOOGLE_SERVICE_ACCOUNT": "/nowhere/account.json"}),
        ("gs://team/soup", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"private_key": SECRET})}),
    ],
)
def test_credentials_that_are_none_open_no_bucket(environment: Set, url: str, said: dict[str, str]) -> None:
    environment(AZURE_STORAGE_ACCOUNT_NAME="acme", **said)
    with pytest.raises(Unavailable, match=f"^{url} cannot be opened as an object store: see .*GOOGLE_") as refused:
        Bucket(url, seconds=2.0)
    assert SECRET not in refused.value.message
