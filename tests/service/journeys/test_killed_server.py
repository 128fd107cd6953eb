"""`soup serve`, killed with jobs running and waiting: the next server on its data folder finishes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaptersoup.client.client import SoupClient
from registry.names import sha256_digest
from registry.spec import CookRequest, Manifest, PoolRequest, SampleSource, UniformSpec
from tests.service.cluster import until
from tests.service.passages import passages
from tests.service.servers import BASE_ID, CONFIG, World, adapter_weights, open_live, open_world, write_bases


class Server:
    """`soup serve` as a process of its own, over a data folder that outlives it."""

    def __init__(self, folder: Path, bases: Path) -> None:
        command = [sys.executable, "-m", "adaptersoup.cli", "serve", "--bases", str(bases), "--data", str(folder)]
        environment = {**os.environ, "SOUP_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.log = (folder.parent / "log").open("ab")
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=self.log, env=environment
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.client = SoupClient(self.url, (folder / "admin.key").read_text().strip())

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()


def test_after_kill_9_the_next_server_finishes_what_was_begun(
    world: World, tiny_base_dir: Path, tmp_path: Path
) -> None:
    """Killed while a sample is embedded and a pool is fitted for a cook: both end well, and nobody's text is left."""
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    first = Server(tmp_path / "data", bases)
    try:
        digest = first.client.upload(adapter_weights(world.runtime, seed=4))
        manifest = {
            "domain": "law", "base_model": BASE_ID, "config": CONFIG.model_dump(),
            "files": {"adapter_model.safetensors": {"digest": digest}}, "sample": {"texts": passages("court", 25)},
        }  # fmt: skip
        tagged = {**manifest, "name": "acme/law", "card": {"tags": ["asked"]}}  # the other is in no cook's pool
        first.client.wait_job(first.client.push(Manifest.model_validate(tagged))["job"])
        sample = SampleSource(texts=tuple(passages("court", 25)))
        asked = CookRequest(sample=sample, selector=UniformSpec(), pool=PoolRequest(tag="asked"), verify=False)
        cooking = first.client.cook(asked, wait=False)["id"]
        manifest["sample"] = {"texts": passages("court", 300, seed=1)}
        job = first.client.push(Manifest.model_validate({**manifest, "name": "acme/other"}))["job"]
        until(lambda: {first.client.job(one)["state"] for one in (job, cooking)} == {"running"})
    finally:
        first.kill()
    second = Server(tmp_path / "data", bases)
    try:
        done = second.client.wait_job(job)
        assert (done["state"], done["attempts"]) == ("succeeded", 2)
        assert second.client.adapter("acme/other")["sample_state"] == "ready"
        assert second.client.wait_job(cooking)["result"]["model"] == "acme/law@1"
        held = (tmp_path / "data" / "blobs").rglob("*")
        assert not [path for path in held if path.is_file() and path.read_bytes().startswith(b'{"request"')]
    finally:
        second.kill()


@pytest.mark.long
def test_an_upload_goes_on_after_kill_9_between_two_parts(tiny_base_dir: Path, tmp_path: Path) -> None:
    """What was acknowledged is there, bytes that were not are gone, and the client sends the rest by itself."""
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    data = b"".join(number.to_bytes(4, "big") for number in range(200_000))
    digest, part = sha256_digest(data), 2**18
    first = Server(tmp_path / "data", bases)
    try:
        send = first.client.send
        path = send("POST", "/v1/blobs/uploads", json={"digest": digest}).headers["location"]
        send("PATCH", path, body=data[:part], headers={"content-range": f"0-{part - 1}"})
    finally:
        first.kill()
    with (tmp_path / "data" / "blobs" / path.removeprefix("/v1/blobs/")).open("ab") as file:
        file.write(b"of a part that was on its way")
    told: list[int] = []
    for world in open_world(tmp_path / "data", bases):
        for live in open_live(world):
            with SoupClient(live.url, world.admin, part_bytes=part) as client:
                assert client.upload(data, progress=lambda done, _total, _name: told.append(done)) == digest
        assert world.registry.blobs.read(digest) == data
    assert told == [part, 2 * part, 3 * part, len(data)]
