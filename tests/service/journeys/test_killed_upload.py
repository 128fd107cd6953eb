"""`soup serve`, killed in the middle of an upload: it goes on with the next server on its data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptersoup.client.client import SoupClient
from registry.names import sha256_digest
from tests.service.cluster import KEY, one_server
from tests.service.servers import open_live, open_world


@pytest.mark.long
def test_an_upload_goes_on_after_kill_9_between_two_parts(allowlist: Path, tmp_path: Path) -> None:
    """Acknowledged bytes are there, bytes that were not are gone, and the client sends the rest by itself."""
    data = b"".join(number.to_bytes(4, "big") for number in range(200_000))
    digest, part_bytes = sha256_digest(data), 2**18
    with one_server(tmp_path / "data", allowlist) as first, SoupClient(first.url, KEY) as client:
        path = client.send("POST", "/v1/blobs/uploads", json={"digest": digest}).headers["location"]
        client.send("PATCH", path, body=data[:part_bytes], headers={"content-range": f"0-{part_bytes - 1}"})
    with (tmp_path / "data" / "blobs" / path.removeprefix("/v1/blobs/")).open("ab") as file:
        file.write(b"of a part that was on its way")
    offsets: list[int] = []
    for world in open_world(tmp_path / "data", allowlist):
        for live in open_live(world):
            with SoupClient(live.url, world.admin, part_bytes=part_bytes) as client:
                assert client.upload(data, progress=lambda done, _total, _name: offsets.append(done)) == digest
        assert world.registry.blobs.read(digest) == data
    assert offsets == [part_bytes, 2 * part_bytes, 3 * part_bytes, len(data)]
