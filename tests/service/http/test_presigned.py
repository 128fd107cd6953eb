"""Downloads of weights that a server sends to its object store: once the key was checked, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adaptersoup.cli.setting_flags import settings_of
from adaptersoup.client.answers import redirect_target
from adaptersoup.client.client import SoupClient
from registry.errors import DigestMismatch, InvalidParameter, Unavailable
from registry.formats import WEIGHTS_FILE
from service.settings import Settings
from tests.object_store import FaultHandler, FaultProxy, ObjectStore, fault_proxy
from tests.service.hub_session import HubError, HubSession
from tests.service.passages import passages
from tests.service.servers import BASE_ID, Live, adapter_weights, open_live, open_world, write_bases

FILES = "/v1/adapters/acme/law/files"
RESOLVED = "/acme/law/resolve/main"


@pytest.fixture(scope="module")
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(object_store) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def live(
    object_store: ObjectStore, proxy: FaultProxy, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    """A server over a bucket that is asked through the proxy, with an adapter that has a sample."""
    folder = tmp_path_factory.mktemp("presigned")
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    options: dict[str, Any] = {"blobs_url": object_store.bucket(), "blobs_presigned_seconds": 60.0, "blobs_seconds": 2}
    for world in open_world(folder / "data", bases, **options):
        world.push("acme/law", seed=1, sample={"texts": passages("court", 21)})
        yield from open_live(world)


@pytest.fixture(autouse=True)
def nothing_wrong(proxy: FaultProxy) -> Iterator[None]:
    yield
    proxy.fault = None


def get(live: Live, path: str, **headers: str) -> Any:
    return live.world.client.get(path, headers=headers, follow_redirects=False)


def weights(live: Live) -> bytes:
    return adapter_weights(live.world.runtime, seed=1)


@pytest.mark.parametrize("path", [f"{FILES}/{WEIGHTS_FILE}", f"{RESOLVED}/{WEIGHTS_FILE}"])
def test_weights_are_at_a_url_that_needs_no_key(live: Live, path: str) -> None:
    answer = get(live, path)
    assert (answer.status_code, answer.content, answer.headers["cache-control"]) == (307, b"", "no-store")
    place = answer.headers["location"]
    assert re.search("X-Amz-Expires=60&", place)
    assert "secret-of-the-store" not in place
    with httpx2.Client(trust_env=False) as keyless:
        assert keyless.get(place).content == weights(live)
        range_answer = keyless.get(place, headers={"range": "bytes=5-14"})
        assert (range_answer.status_code, range_answer.content) == (206, weights(live)[5:15])
    assert get(live, path, **{"if-none-match": answer.headers["etag"]}).status_code == 304
    headers = live.world.client.head(path).headers
    assert (int(headers["content-length"]), headers["etag"]) == (len(weights(live)), answer.headers["etag"])
    assert "location" not in headers


def test_the_hubs_answer_names_commit_and_size(live: Live) -> None:
    headers = get(live, f"{RESOLVED}/{WEIGHTS_FILE}").headers
    assert headers["x-repo-commit"]
    assert headers["x-linked-size"] == str(len(weights(live)))


@pytest.mark.parametrize("path", [f"{FILES}/samples.jsonl", f"{RESOLVED}/samples.jsonl", f"{RESOLVED}/README.md"])
def test_nothing_else_leaves_the_server(live: Live, path: str) -> None:
    answer = get(live, path)
    assert (answer.status_code, "location" in answer.headers) == (200, False)


def test_blobs_by_digest_may_be_samples_and_stay(live: Live) -> None:
    digest = live.world.client.get("/v1/adapters/acme/law").json()["weights_blob"]
    assert get(live, f"/v1/blobs/{digest}").content == weights(live)


def test_the_key_is_checked_first(live: Live) -> None:
    path, outsider = f"{FILES}/{WEIGHTS_FILE}", live.world.headers(live.world.key(["read"], ["elsewhere"]))
    writer = live.world.headers(live.world.key(["write"], ["acme"]))
    answers = {name: get(live, path, **headers) for name, headers in {"other": outsider, "writer": writer}.items()}
    assert {name: answer.status_code for name, answer in answers.items()} == {"other": 404, "writer": 403}
    answer = httpx2.get(live.url + path, trust_env=False)
    assert (answer.status_code, "location" in answer.headers) == (401, False)


def signed_requests(proxy: FaultProxy) -> list[dict[str, str]]:
    """The headers, in lower case, of what comes to the store by signed URLs from now on."""
    signed_headers: list[dict[str, str]] = []

    def watch(request: FaultHandler) -> bool:
        if "X-Amz-Signature" in request.path:
            signed_headers.append({name.lower(): value for name, value in request.headers.items()})
        return False

    proxy.fault = watch
    return signed_headers


def answered(status: int, body: bytes) -> Callable[[FaultHandler], bool]:
    """The fault of a store that answers this to signed URLs."""
    return lambda request: "X-Amz-Signature" in request.path and (request.answer(status, {}, body) or True)


def test_a_client_follows_without_its_key_and_checks_what_came(
    live: Live, client: SoupClient, proxy: FaultProxy, tmp_path: Path
) -> None:
    signed_headers = signed_requests(proxy)
    client.pull_directory("acme/law", tmp_path / "law")
    assert (tmp_path / "law" / WEIGHTS_FILE).read_bytes() == weights(live)
    assert len(signed_headers) == 1
    assert "authorization" not in signed_headers[0]
    assert live.world.admin not in str(signed_headers[0])
    proxy.fault = answered(200, b"other")
    with pytest.raises(DigestMismatch, match="arrived damaged"):
        client.pull_directory("acme/law", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    proxy.fault = answered(403, b"")
    with pytest.raises(Unavailable, match=r"answered a download with status 403") as error:
        client.pull_directory("acme/law", tmp_path / "other")
    assert "X-Amz" not in str(error.value)


@pytest.mark.interop
def test_huggingface_hub_follows_and_takes_its_token_nowhere(live: Live, proxy: FaultProxy, tmp_path: Path) -> None:
    signed_headers = signed_requests(proxy)
    token = live.world.key(["read"], ["acme"])
    with closing(HubSession(live.url, token, tmp_path / "hub")) as hub:
        assert (Path(hub.ask("snapshot_download", repo_id="acme/law")) / WEIGHTS_FILE).read_bytes() == weights(live)
        assert len(signed_headers) == 1
        assert token not in str(signed_headers)
        proxy.fault = answered(403, b"")
        with pytest.raises(HubError):
            hub.ask("hf_hub_download", repo_id="acme/law", filename=WEIGHTS_FILE, force_download=True)


@pytest.mark.parametrize("place", ["file:///etc/passwd", ""])
def test_a_client_goes_to_no_place_that_is_not_http(tmp_path: Path, place: str) -> None:
    moved = httpx2.MockTransport(lambda _: httpx2.Response(307, headers={"location": place}))
    client = SoupClient("http://127.0.0.1:1", "key", transport=moved)
    with closing(client), pytest.raises(Unavailable, match="an invalid address"):
        client.download("acme/law@1", WEIGHTS_FILE, tmp_path / "x", digest="sha256:" + "0" * 64)


@pytest.mark.parametrize(
    ("server", "place", "follows"),
    [
        ("https://soup.test", "http://evil.test/x", False),
        ("https://soup.test", "http://localhost.evil.test/x", False),
        ("https://soup.test", "//evil.test:80/x", True),
        ("https://soup.test", "https://bucket.test/x", True),
        ("https://soup.test", "http://127.0.0.1:9000/x", True),
        ("http://soup.test", "http://bucket.test/x", True),
    ],
)
def test_a_client_goes_from_an_encrypted_server_to_no_open_place(server: str, place: str, follows: bool) -> None:
    answer = httpx2.Response(307, headers={"location": place}, request=httpx2.Request("GET", f"{server}/file"))
    if follows:
        assert redirect_target(answer) == httpx2.URL(server).join(place)
    else:
        with pytest.raises(Unavailable, match=r"to http://.*evil.test, which is not encrypted"):
            redirect_target(answer)


@pytest.mark.parametrize("url", [None, "file:///srv/blobs"])
def test_a_folder_is_refused_that_setting(url: str | None) -> None:
    sentence = "^SOUP_BLOBS_PRESIGNED_SECONDS needs SOUP_BLOBS_URL with a bucket of s3, gs or az: .*[.]$"
    with pytest.raises(InvalidParameter, match=sentence):  # as the command line says it
        settings_of(Settings, blobs_url=url, blobs_presigned_seconds=60)
