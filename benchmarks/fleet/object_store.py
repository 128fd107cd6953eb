"""An S3 server with a bucket, as processes: moto, and before it a front that can be killed and started again."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.replicas import free_port
from demo.results import ROOT
from registry.errors import Internal

BUCKET = "soup"
PLACE = f"{BUCKET}/blobs"
NOT_FOUND, NOT_YOURS = 404, 403
START_SECONDS = 60.0


def bucket_settings(port: int) -> dict[str, str]:
    """Variables of a server that has its blobs in the bucket, which it reaches at a port."""
    return {
        "SOUP_BLOBS_URL": f"s3://{PLACE}", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
    }  # fmt: skip


@dataclass
class Store:
    """The server at `target`, and the front at `port`, which is what clients know."""

    port: int
    target: int
    log: Path
    front: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the front; raises Internal where it does not listen."""
        with self.log.open("ab") as errors:
            self.front = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fleet.front", str(self.port), str(self.target)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert self.front.stdout is not None
        if not self.front.stdout.readline():
            raise Internal(f"the front of the store did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def has(self, digest: str) -> bool:
        """Whether the server behind holds the object of a blob, asked past the front and past every server of ours."""
        name = digest.removeprefix("sha256:")
        asked = urllib.request.Request(f"http://127.0.0.1:{self.target}/{PLACE}/{name[:2]}/{name}", method="HEAD")
        try:
            urllib.request.urlopen(asked).close()
        except urllib.error.HTTPError as error:
            if error.code in (NOT_FOUND, NOT_YOURS):  # an unsigned request for one that is there is refused
                return error.code == NOT_YOURS
            raise
        return True

    def kill(self) -> None:
        """kill -9 of the front."""
        assert self.front is not None
        self.front.kill()
        self.front.communicate()


@contextmanager
def object_store(folder: Path) -> Iterator[Store]:
    """A store with an empty bucket while open, with its front as a process; its logs are in `folder`."""
    with s3_server(folder) as target:
        store = Store(free_port(), target, folder / "store-log")
        store.start()
        try:
            yield store
        finally:
            assert store.front is not None
            if store.front.poll() is None:
                store.kill()


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """The port of an S3 server with an empty bucket, a process of its own, while open."""
    port = free_port()
    with (folder / "s3-log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _make_bucket(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _make_bucket(port: int, process: subprocess.Popen[bytes]) -> None:
    """Make the bucket, once the server answers; raises Internal where it ends or takes too long."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(request).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    raise Internal(f"the S3 server did not answer within {START_SECONDS:.0f} s")
