"""Google's store has no request that deletes many: how long others wait for a removal all the same.

What answers stands for it in what is asked of it here: an object, a list, a deletion.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.blobs import bucket
from registry.blobs.bucket import ONE_BY_ONE
from registry.errors import Unavailable
from registry.names import sha256_digest
from tests.object_store import object_blobs

DIGESTS = [sha256_digest(b"%d" % number) for number in range(25)]
NONE_LISTED = b'<ListBucketResult xmlns="http://doc.s3.amazonaws.com/2006-03-01"></ListBucketResult>'


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The requests that came to the store, which the variables name while it is open: it holds nothing, not a mark."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_any(self) -> None:
            asked.append(self.command)
            listing = self.command == "GET" and "list-type" in self.path
            body = NONE_LISTED if listing else b""
            self.send_response(200 if listing else 204 if self.command == "DELETE" else 404)
            if self.command != "DELETE":
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_DELETE = do_any

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        account = {
            "gcs_base_url": f"http://127.0.0.1:{server.server_address[1]}", "disable_oauth": True, "private_key": "",
            "private_key_id": "", "client_email": "",
        }  # fmt: skip
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        yield asked
        server.shutdown()
        thread.join()


def test_each_is_a_request_and_nobody_waits_for_those_that_come_late(
    seen: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten go side by side. Where half of the time is over no others are begun."""
    store = object_blobs("gs://team/soup", tmp_path)
    store.delete_all(DIGESTS, briefly=True)
    assert seen == ["GET", "GET", *["DELETE"] * len(DIGESTS)], "the mark, what is set aside, and the objects"
    seen.clear()
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now + 0.06 * len(seen), sleep=time.sleep)
    monkeypatch.setattr(bucket, "time", clock)
    with pytest.raises(Unavailable, match=r"^gs://team/soup does not answer"):
        store.delete_all(DIGESTS, briefly=True)
    assert seen.count("DELETE") == 2 * ONE_BY_ONE
    assert not store.in_trouble
    seen.clear()
    store.delete_all(DIGESTS)
    assert seen.count("DELETE") == len(DIGESTS)
