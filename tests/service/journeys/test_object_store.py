"""A whole server over a bucket: killed in the middle of a push, with an empty cache, set aside, backed up, copied."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from adaptersoup.client.additions import Additions
from adaptersoup.client.client import SoupClient
from adaptersoup.client.transfer import send_folder
from registry.blobs import BlobStore
from registry.blobs.bucket import Bucket
from registry.errors import DamagedBlob
from registry.formats import AdapterContents, read_directory, write_directory
from registry.names import sha256_digest
from tests.adaptersoup.cli.outcome import refused
from tests.object_store import FaultHandler, FaultProxy, ObjectStore
from tests.service.answers import answered, temporary_refusal
from tests.service.cluster import KEY, client_of, cluster, ended, until
from tests.service.passages import passages
from tests.service.pushes import manifest, weights_for
from tests.service.servers import BASE_ID, CONFIG, Soup, World, adapter_weights, open_live, open_world

SAID = {"model": "acme/law", "prompt": "the court", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def url(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    url = object_store.bucket()
    monkeypatch.setenv("SOUP_BLOBS_URL", url)
    monkeypatch.setenv("SOUP_BLOBS_SECONDS", "2")
    return url


def completion_text(world: World) -> str:
    return str(answered(world.client.post("/v1/completions", json=SAID))["choices"][0]["text"])


def keys(url: str) -> list[str]:
    return sorted(Bucket(url, seconds=5.0).list_keys())


@pytest.mark.long
def test_what_was_acknowledged_before_kill_9_another_server_serves_and_finishes_with_an_empty_cache(
    object_store: ObjectStore,
    postgres_url: str,
    allowlist: Path,
    tiny_base_dir: Path,
    tmp_path: Path,
    proxy: FaultProxy,
) -> None:
    """Killed amid an embedding, a cook and a push: jobs are done by whoever is left when their lease is out.

    The push is nowhere and is pushed again, and nobody's text is left.
    """
    url, data = object_store.bucket(), tmp_path / "data"
    settings = {"blobs_url": url, "blobs_seconds": 2.0, "database_url": postgres_url, "job_lease_seconds": 3.0}
    durable, lost = (weights_for(tiny_base_dir, seed=seed) for seed in (1, 2))
    texts = {"texts": passages("court", 25)}
    begun = threading.Event()

    def hold(request: FaultHandler) -> bool:
        """The object of the second adapter is on its way, and does not arrive."""
        if request.command != "PUT" or key_of(lost) not in request.path:
            return False
        begun.set()
        request.proxy.closed.wait(60)
        request.close_connection = True
        return True

    with (
        cluster(tmp_path / "processes", bases=allowlist, blobs=None, **settings) as processes,
        ThreadPoolExecutor(1) as pool,
    ):
        killed = processes.server(data=data)
        killed.wait()
        with client_of(killed.url) as client:
            pushed = client.post("/v1/adapters", json=manifest("acme/law", durable, sample=texts)).json()
            recipe = {"ingredients": [{"ref": "acme/law"}]}
            body = {"recipe": recipe, "sample": texts, "effort": "tune", "tuning": {"passes": 1}, "wait": 0}
            jobs = [pushed["job"], client.post("/v1/soups", json=body).json()["id"]]
            until(lambda: {client.get(f"/v1/jobs/{job}").json()["state"] for job in jobs} == {"running"})
            proxy.fault = hold
            losing = pool.submit(client.post, "/v1/adapters", json=manifest("acme/lost", lost))
            assert begun.wait(30)
            killed.end()
            assert isinstance(losing.exception(30), httpx2.TransportError)
    assert not [key for key in keys_through(proxy, url) if key.endswith(key_of(lost))]
    shutil.rmtree(data / "cache")
    for world in open_world(data, allowlist, bootstrap_key=KEY, **settings):
        assert list((data / "unfinished" / "incoming").iterdir()) == []
        assert completion_text(world)
        assert key_of(durable) in {path.name for path in (data / "cache" / "blobs").iterdir()}
        rows = [ended(world.client, job) for job in jobs]
        assert [(row["state"], row["attempts"]) for row in rows] == [("succeeded", 2)] * 2
        assert world.client.get("/v1/adapters/acme/law").json()["sample_state"] == "ready"
        until(partial(hold_no_request, world.registry.blobs))
        assert world.client.post("/v1/adapters", json=manifest("acme/lost", lost)).status_code == 201
        assert [key for key in keys(url) if key.endswith(key_of(lost))]


def key_of(weights: bytes) -> str:
    """The end of the key of these bytes in a bucket."""
    return sha256_digest(weights).removeprefix("sha256:")


def hold_no_request(blobs: BlobStore) -> bool:
    """Return True if none of them is what somebody sent to be cooked."""
    try:
        return not any(blobs.read(digest).startswith(b'{"request"') for digest in blobs.digests())
    except DamagedBlob:  # it was removed after it was listed
        return False


def test_a_store_that_is_away_is_told_and_what_needs_none_goes_on(
    url: str, allowlist: Path, tmp_path: Path, proxy: FaultProxy
) -> None:
    for world in open_world(tmp_path / "data", allowlist, ready_seconds=0, blobs_seconds=1.0):
        world.push("acme/law", seed=1)
        text_before = completion_text(world)
        proxy.fault = lambda request: request.answer(503, {}, b"") or True
        answer = world.client.put(f"/v1/blobs/{sha256_digest(b'more')}", content=b"more")
        assert temporary_refusal(answer) == f"{url} does not answer, or not whole: try again later."
        ready = world.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["blobs"]) == (503, "does not answer")
        assert completion_text(world) == text_before
        assert world.client.post("/v1/completions", json={**SAID, "model": f"base/{BASE_ID}"}).status_code == 200
        proxy.fault = None
        assert world.client.get("/readyz").json()["checks"]["blobs"] == "ok"
        assert world.client.put(f"/v1/blobs/{sha256_digest(b'more')}", content=b"more").status_code == 201


@pytest.mark.long
def test_kill_9_of_the_server_that_takes_a_part_and_another_goes_on(
    object_store: ObjectStore, postgres_url: str, allowlist: Path, tmp_path: Path
) -> None:
    """Acknowledged bytes are there for the next server, the others are sent again."""
    data = bytes(range(256)) * 4000
    settings = {"blobs": None, "blobs_url": object_store.bucket(), "database_url": postgres_url, "bases": allowlist}
    with cluster(tmp_path / "cluster", **settings, preload=False, job_workers=0) as processes:
        servers = [processes.server(), processes.server()]
        for server in servers:
            server.wait()
        first, second = (client_of(server.url) for server in servers)
        path = first.post("/v1/blobs/uploads", json={"digest": sha256_digest(data)}).headers["location"]
        half = len(data) // 2
        answer = first.patch(path, content=data[:half], headers={"content-range": f"0-{half - 1}"})
        assert answer.headers["upload-offset"] == str(half)
        connection = http.client.HTTPConnection(urlsplit(servers[0].url).netloc, timeout=30)
        with closing(connection):
            connection.putrequest("PATCH", path)
            for name, value in {
                "authorization": f"Bearer {KEY}",
                "content-range": f"{half}-{len(data) - 1}",
                "content-length": str(len(data) - half),
            }.items():
                connection.putheader(name, value)
            connection.endheaders()
            connection.send(data[half:-1])
            until(lambda: list((tmp_path / "cluster" / "data-0" / "unfinished" / "incoming").iterdir()))
            servers[0].end()
        assert second.get(path).headers["upload-offset"] == str(half)
        rest = {"content-range": f"{half}-{len(data) - 1}"}
        done = second.put(path, content=data[half:], headers=rest, params={"digest": sha256_digest(data)})
        assert (done.status_code, done.json()["size"]) == (201, len(data)), done.text
        assert second.get(f"/v1/blobs/{sha256_digest(data)}").content == data
        assert not [key for key in keys(settings["blobs_url"]) if key.startswith("unfinished/")]
        first.close()
        second.close()


def test_what_no_row_names_is_set_aside_and_comes_back(url: str, allowlist: Path, tmp_path: Path) -> None:
    for world in open_world(tmp_path / "data", allowlist):
        law = world.push("acme/law", seed=1)["weights_blob"]
        stray = world.registry.blobs.put_bytes(b"of a push that was cut off")
    for world in open_world(tmp_path / "data", allowlist):
        assert not world.registry.blobs.has(stray)
        assert [key[-64:] for key in keys(url) if key.startswith("set-aside/")] == [stray[7:]]
        assert world.registry.blobs.set_aside.restore(stray)
        assert world.registry.blobs.read(stray) == b"of a push that was cut off"
        assert world.registry.blobs.is_whole(law)


def test_check_backup_and_restore(url: str, allowlist: Path, tmp_path: Path, command: Soup) -> None:
    for world in open_world(tmp_path / "data", allowlist):
        law = world.push("acme/law", seed=1)["weights_blob"]
        text_before = completion_text(world)
    place = ("--data", tmp_path / "data")
    assert command("check", "--all", *place)[0] == 0
    assert command("backup", tmp_path / "backup", "--with-admin-key", *place)[0] == 0
    key = f"{law[7:9]}/{law[7:]}"
    bucket = Bucket(url, seconds=5.0)
    bucket.put(key, b"other", 5)
    code, out, _ = command("check", "--all", "--json", *place)
    assert (code, [blob["problem"] for blob in json.loads(out)["unsound"]]) == (1, ["damaged"])
    bucket.delete(key)
    code, out, _ = command("check", "--json", *place)
    assert (code, json.loads(out)["missing"]) == (1, 1)
    assert command("restore", tmp_path / "backup", "--replace", *place)[0] == 0
    for world in open_world(tmp_path / "data", allowlist):
        assert completion_text(world) == text_before
        assert world.registry.blobs.is_whole(law)


# --- copy -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(allowlist: Path, tmp_path: Path) -> Iterator[World]:
    """A server over a folder."""
    yield from open_world(tmp_path / "data", allowlist)


def test_a_folder_into_a_bucket_while_it_is_served(
    folder: World, object_store: ObjectStore, allowlist: Path, tmp_path: Path, command: Soup
) -> None:
    url, place = object_store.bucket(), ("--data", tmp_path / "data", "--json")
    law = folder.push("acme/law", seed=1)["weights_blob"]
    code, out, err = command("blobs", "copy", url, *place)
    assert (code, json.loads(out)["unsound"]) == (0, []), err
    assert json.loads(out)["new"] == json.loads(out)["blobs"] > 0
    tax = folder.push("acme/tax", seed=2)["weights_blob"]
    code, out, _ = command("blobs", "copy", url, *place)
    assert (code, json.loads(out)["new"], json.loads(out)["removed"]) == (0, 1, 0)
    text_before = completion_text(folder)
    folder.runtime.stop()
    shutil.rmtree(tmp_path / "data" / "blobs")
    for world in open_world(tmp_path / "data", allowlist, blobs_url=url):
        assert completion_text(world) == text_before
        assert all(map(world.registry.blobs.is_whole, (law, tax)))


def test_one_that_was_cut_off_goes_on(
    folder: World, object_store: ObjectStore, proxy: FaultProxy, tmp_path: Path, command: Soup
) -> None:
    url = object_store.bucket()
    for seed in range(3):
        folder.push(f"acme/law{seed}", seed=seed)
    puts_left = [4]

    def ends(request: FaultHandler) -> bool:
        puts_left[0] -= request.command == "PUT"
        return puts_left[0] < 2 and (request.answer(403, {}, b"") or True)

    proxy.fault = ends
    assert f"{url} refuses the server's credentials" in refused(
        command("blobs", "copy", url, "--data", tmp_path / "data")
    )
    there = len(keys_through(proxy, url))
    assert there == 2
    code, out, _ = command("blobs", "copy", url, "--data", tmp_path / "data", "--json")
    assert (code, json.loads(out)["new"]) == (0, json.loads(out)["blobs"] - there)


def test_what_is_not_whole_is_named_and_the_rest_copied(
    folder: World, object_store: ObjectStore, tmp_path: Path, command: Soup
) -> None:
    law = folder.push("acme/law", seed=1)["weights_blob"]
    folder.push("acme/tax", seed=2)
    (folder.runtime.settings.blobs_dir / law[7:9] / law[7:]).write_bytes(b"other")
    code, out, _ = command("blobs", "copy", object_store.bucket(), "--data", tmp_path / "data", "--json")
    report = json.loads(out)
    assert (code, report["new"], report["unsound"][0]["digest"]) == (1, report["blobs"] - 1, law)
    assert report["unsound"][0]["named_by"] == ["weights of acme/law@1"]


def test_another_servers_bucket_is_left_alone(
    folder: World, object_store: ObjectStore, allowlist: Path, tmp_path: Path, command: Soup
) -> None:
    url = object_store.bucket()
    for _ in open_world(tmp_path / "other", allowlist, blobs_url=url):
        pass
    keys_before = keys(url)
    code, _, err = command("blobs", "copy", url, "--data", tmp_path / "data")
    assert (code, keys(url)) == (1, keys_before)
    assert f"{url} holds the blobs of another server" in err


def test_a_url_that_holds_a_secret_is_refused_and_not_repeated(tmp_path: Path, command: Soup) -> None:
    code, _, err = command("blobs", "copy", "s3://id:hunter2@bucket/x", "--data", tmp_path)
    assert code != 0
    assert "hunter2" not in err
    assert "without credentials" in err


def keys_through(proxy: FaultProxy, url: str) -> list[str]:
    """The keys of a bucket, with the proxy's fault gone."""
    proxy.fault = None
    return keys(url)


def test_a_push_repairs_a_damaged_object_that_a_server_read_or_is_told_to_take_anew(
    url: str, allowlist: Path, tmp_path: Path
) -> None:
    """Each server has the database of the one before, nothing in its cache, and a damaged object in the bucket.

    A server that is asked whether a blob is there, and has not read it, says that it is.
    """
    for way in ("first", "one", "read", "anew"):
        for live in (live for world in open_world(tmp_path / "data", allowlist) for live in open_live(world)):
            weights = adapter_weights(live.world.runtime, seed=1)
            digest = sha256_digest(weights)
            if way == "first":
                contents = AdapterContents(config=CONFIG, domain="law", weights=weights, base_model=BASE_ID)
                write_directory(tmp_path / "law", contents)
            with SoupClient(live.url, live.world.admin, inline_bytes=0) as client:
                assert client.has_blob(digest) is (way != "first")
                if way == "one":
                    assert client.push_directory(tmp_path / "law", name="acme/law")["weights_blob"] == digest
                else:
                    send = partial(
                        send_folder, client, read_directory(tmp_path / "law"), name="acme/law", more=Additions()
                    )
                    assert send().status == ("pushed" if way == "first" else "there already"), "nobody has read it"
                    if way == "read":
                        assert live.world.client.get(f"/v1/blobs/{digest}").status_code == 500
                    if way != "first":
                        assert send(anew=way == "anew").status == "sent again"
            assert live.world.client.get(f"/v1/blobs/{digest}").content == weights
        shutil.rmtree(tmp_path / "data" / "cache")
        Bucket(url, seconds=5.0).put(f"{digest[7:9]}/{digest[7:]}", b"damaged", 7)
