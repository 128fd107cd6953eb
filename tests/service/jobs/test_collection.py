"""The server collects by itself: with a short grace period an upload that nothing is made of is gone soon."""

from __future__ import annotations

from datetime import UTC, datetime

from registry.names import sha256_digest
from tests.service.cluster import until
from tests.service.servers import World

SETTINGS = {"collect_days": 0.5 / 86_400, "collect_seconds": 0.05}


def test_an_upload_goes_and_what_is_pushed_stays(world: World) -> None:
    data = b"nothing is made of this"
    path = f"/v1/blobs/{sha256_digest(data)}"
    assert world.client.put(path, content=data).status_code == 201
    pushed = world.push("acme/kept", sample={"texts": [f"passage {number} of a domain" for number in range(30)]})
    until(lambda: world.client.get(path).status_code != 200 and not world.registry.blobs.has(sha256_digest(data)))
    since = datetime.now(UTC)
    while (datetime.now(UTC) - since).total_seconds() < 1.2:  # longer than the grace period and its file's day
        assert world.client.get(f"/v1/blobs/{pushed['weights_blob']}").status_code == 200
    assert [entry["action"] for entry in world.client.get("/v1/audit?action=blob.collect").json()["data"]]
