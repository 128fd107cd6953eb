"""Connecting to a real Ray cluster of this machine: what its head says to a token, and to none."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from registry.errors import InvalidParameter, SoupError, Unauthenticated, Unavailable
from registry.tasks.ray_connection import auth_token, check_cluster

TOKEN = "token-of-the-tests-" + "0" * 32
HEAD = """
import os, sys, warnings
warnings.simplefilter("error")
from registry.tasks.ray_connection import ray_connection
with ray_connection(None):
    import ray
    usage = ray.remote(lambda: os.environ["RAY_USAGE_STATS_ENABLED"])
    print(ray.get_runtime_context().gcs_address, ray.get(usage.remote()), flush=True)
    sys.stdin.read()
"""


def environment(**more: str) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**variables, **more}


@contextmanager
def head(**more: str) -> Iterator[str]:
    """The address of a cluster started in a process of its own; its tasks send no statistics."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**more)
    )
    try:
        address, _, answer = process.stdout.readline().strip().partition(" ")
        assert answer == "0"
        yield address
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with head(RAY_AUTH_TOKEN=TOKEN) as address:
        yield address


@pytest.fixture(autouse=True)
def _only_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


# --- a real cluster -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_it_takes_its_token_and_listens_on_loopback(cluster: str) -> None:
    check_cluster(cluster)
    assert ipaddress.ip_address(cluster.partition(":")[0]).is_loopback


@pytest.mark.slow
@pytest.mark.long
def test_a_token_in_a_file_does_as_well(cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    check_cluster(cluster)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("wrong", [TOKEN + "1", TOKEN[:-1], "Bearer"])
def test_another_token_is_refused_at_once(cluster: str, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", wrong)
    with pytest.raises(Unauthenticated, match="refuses this token"):
        check_cluster(cluster)


@pytest.mark.slow
@pytest.mark.long
def test_no_token_is_a_sentence_that_says_where_one_belongs(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    with pytest.raises(Unauthenticated, match="RAY_AUTH_TOKEN_PATH"):
        check_cluster(cluster)


class Head(grpc.GenericRpcHandler):
    """A head that takes one token, or answers whoever asks, as that of a cluster without tokens does."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        authorization = dict(handler_call_details.invocation_metadata).get("authorization")

        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            if self.token is not None and authorization != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def answering(token: str | None, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """The address of a head, over TLS with its credentials."""
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Head(token)])
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


# --- without a cluster ----------------------------------------------------------------------------


def test_one_that_asks_for_no_token_is_refused_unless_the_operator_wants_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(None) as address:
        with pytest.raises(Unauthenticated, match="requires no token"):
            check_cluster(address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        check_cluster(address)


@pytest.mark.slow
def test_nobody_at_the_address_is_said_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"No Ray cluster answers at {address}"):
            check_cluster(address)


@pytest.mark.parametrize("address", ["", "auto", "head", "head:", ":6379", "ray://head:10001", "head:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidParameter, match="HOST:PORT"):
        check_cluster(address)


def test_a_token_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "gone"))
    with pytest.raises(Unauthenticated, match="gone"):
        auth_token()


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SoupError, match=r"pip install 'adaptersoup\[ray\]'"):
        check_cluster("127.0.0.1:6379")


# --- over TLS, where Ray's own connections are -------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, which is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "own.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=head",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture
def tls_head(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate, key = (path.read_bytes() for path in files)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with answering(
        TOKEN, grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
    ) as address:
        yield address


@pytest.mark.slow
def test_the_question_goes_over_tls(tls_head: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = map(str, files)
    for name, value in (("USE_TLS", "1"), ("TLS_SERVER_CERT", certificate), ("TLS_SERVER_KEY", key)):
        monkeypatch.setenv(f"RAY_{name}", value)
    with pytest.raises(Unavailable, match="RAY_TLS_CA_CERT names no file"):
        check_cluster(tls_head)
    monkeypatch.setenv("RAY_TLS_CA_CERT", "/nowhere/none")
    with pytest.raises(Unavailable, match="RAY_TLS_SERVER_CERT cannot be read"):
        check_cluster(tls_head)
    monkeypatch.setenv("RAY_TLS_CA_CERT", certificate)
    check_cluster(tls_head)


@pytest.mark.slow
def test_a_head_that_speaks_tls_gets_no_token_in_the_clear(tls_head: str) -> None:
    with pytest.raises(Unavailable, match="No Ray cluster answers"):
        check_cluster(tls_head)
