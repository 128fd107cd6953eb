"""The question to a cluster's head goes over TLS where Ray's own connections do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from registry.errors import Unavailable
from registry.ray_connection import check_cluster

pytestmark = pytest.mark.slow
TOKEN = "t" * 40


class Head(grpc.GenericRpcHandler):
    """A head that takes one token."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        said = dict(handler_call_details.invocation_metadata).get("authorization")

        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            if said != f"Bearer {TOKEN}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, which is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    own, key = folder / "own.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=head",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(own)],
        check=True, capture_output=True,
    )  # fmt: skip
    return own, key


@pytest.fixture
def head(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    own, key = (path.read_bytes() for path in files)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Head()])
    credentials = grpc.ssl_server_credentials([(key, own)], root_certificates=own, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_the_question_goes_over_tls(head: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(files[0]))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(files[1]))
    with pytest.raises(Unavailable, match="RAY_TLS_CA_CERT names no file"):
        check_cluster(head)
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(files[0].with_name("none")))
    with pytest.raises(Unavailable, match="RAY_TLS_SERVER_CERT cannot be read"):
        check_cluster(head)
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(files[0]))
    check_cluster(head)


def test_a_head_that_speaks_tls_gets_no_token_in_the_clear(head: str) -> None:
    with pytest.raises(Unavailable, match="No Ray cluster answers"):
        check_cluster(head)
