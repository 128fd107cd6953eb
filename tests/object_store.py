"""A real S3 server of the test process, on a free port of loopback, and a proxy before it that fails as stores do."""

from __future__ import annotations

import http.client
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.local import LocalBlobs
from registry.blobs.objects import ObjectBlobs

NUMBERS = count()


@dataclass
class ObjectStore:
    """The server; what opens a bucket finds it by variables of the environment."""

    address: str
    environment: dict[str, str]

    def bucket(self) -> str:
        """The URL of a part of a new bucket."""
        name = f"bucket-{next(NUMBERS)}"
        self.request("PUT", name)
        return f"s3://{name}/soup/blobs"

    def request(self, method: str, bucket: str) -> None:
        """Make (PUT) or remove (DELETE) a bucket; raises HTTPError."""
        urllib.request.urlopen(urllib.request.Request(f"http://{self.address}/{bucket}", method=method)).close()


@contextmanager
def object_store_server() -> Iterator[ObjectStore]:
    """The server and its variables while open."""
    os.environ.setdefault("S3_UPLOAD_PART_MIN_SIZE", "10240")  # of moto: parts of 5 MiB, the least of S3's, take long
    from moto.server import ThreadedMotoServer  # a second, which only those pay who need it

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-store",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            yield ObjectStore(f"{host}:{port}", environment)
    finally:
        server.stop()


def object_blobs(url: str, folder: Path, *, seconds: float = 5.0, most: int = 2**20) -> ObjectBlobs:
    """A store over a bucket, as a server has it whose folder this is."""
    return ObjectBlobs(
        Bucket(url, seconds=seconds), cache=BlobCache(folder / "cache", most), staging=LocalBlobs(folder / "unfinished")
    )


def hidden(store: ObjectBlobs) -> ObjectBlobs:
    """A second view of the store, as another server sees it that has fetched nothing yet."""
    return object_blobs(store.location, store.folder.parent / f"other-{next(NUMBERS)}")


Fault = Callable[["FaultHandler"], bool]
"""What happens to a request: True where it was answered, else it goes on to the server."""


@dataclass
class FaultProxy:
    """Requests go through it to the server; each is given to `fault` first."""

    target: str
    fault: Fault | None = None
    requests: list[str] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    port: int = 0


class FaultHandler(BaseHTTPRequestHandler):
    """One connection to the proxy."""

    protocol_version = "HTTP/1.1"
    proxy: FaultProxy
    body: bytes

    def handle_any(self) -> None:
        """Hand a request on, unless the fault answers it."""
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.proxy.requests.append(f"{self.command} {self.path}")
        if self.proxy.fault is not None and self.proxy.fault(self):
            return
        self.answer(*self.forwarded())

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

    def forwarded(self) -> tuple[int, dict[str, str], bytes]:
        """The server's answer to the request."""
        connection = http.client.HTTPConnection(self.proxy.target)
        try:
            connection.request(self.command, self.path, self.body, dict(self.headers.items()))
            response = connection.getresponse()
            data = response.read()
            headers = {k: v for k, v in response.getheaders() if k.lower() not in ("transfer-encoding", "connection")}
            return response.status, headers, data
        finally:
            connection.close()

    def answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: int | None = None) -> None:
        """Answer; with `cut` the connection ends after so many bytes of the body."""
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def fault_proxy(store: ObjectStore) -> Iterator[FaultProxy]:
    """A proxy before the server, which the variables name while it is open."""
    proxy = FaultProxy(store.address)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (FaultHandler,), {"proxy": proxy}))
    server.daemon_threads = True
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            yield proxy
    finally:
        proxy.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
