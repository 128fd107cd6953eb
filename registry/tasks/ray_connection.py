"""The connection of this process to a Ray cluster, which must require a token.

Used by all code that runs on Ray: inference replicas, sweeps, evaluations. Ray is an extra (`adaptersoup[ray]`),
imported by these modules only, in functions. Anybody who reaches a cluster without a token can run code on it, so such
a cluster is refused unless the operator sets `RAY_AUTH_MODE=disabled`. Ray's own variables give the token
(`RAY_AUTH_TOKEN`, else the file `RAY_AUTH_TOKEN_PATH`, else `~/.ray/auth_token`). No usage statistics are sent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from registry.errors import InvalidParameter, Unauthenticated, Unavailable

NOT_INSTALLED = "This needs Ray, which is not installed: pip install 'adaptersoup[ray]'."
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""The address a local cluster listens on: Ray replaces 127.0.0.1 by the machine's address in the network."""
ANSWER_SECONDS = 5.0
"""The timeout of a cluster's first answer."""
_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""The call that Ray's nodes use to check the head."""
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of a change in its next version
}
"""Defaults of environment variables of Ray, which its processes inherit."""
_RECONNECT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "31536000"}
"""For processes that use a cluster: by default Ray ends them when the head is unreachable for a minute."""

_TLS = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")


@contextmanager
def ray_connection(address: str | None) -> Iterator[None]:
    """Connect to the cluster whose head is at `HOST:PORT`; without an address start one on this machine.

    A cluster that is started here listens on loopback and ends with the connection. An address needs a node of that
    cluster on this machine (`ray start --address HOST:PORT`). A process can connect to one cluster at a time.

    Raises Unavailable where Ray is not installed or nothing answers, Unauthenticated where the token is missing, wrong
    or not required, and InvalidParameter for a malformed address.
    """
    prepare_environment()
    if address is not None:
        _set_defaults(_RECONNECT)
        check_cluster(address)
    try:
        import ray
    except ModuleNotFoundError:
        raise Unavailable(NOT_INSTALLED) from None
    local: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": LOOPBACK}
    options = local if address is None else {}
    try:
        ray.init(address or "local", configure_logging=False, log_to_driver=False, namespace="soup", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Unavailable(_connection_problem(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def prepare_environment() -> None:
    """Set Ray's environment variables; must be called before Ray is imported or one of its processes is started."""
    _set_defaults(_ENVIRONMENT)


def _set_defaults(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def check_cluster(address: str) -> None:
    """Check that the head of a cluster answers and accepts the token; Ray itself would try for 20 seconds.

    Raises as `ray_connection` does.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InvalidParameter(
            f"'{address[:200]}' is not the address of a Ray cluster: it is HOST:PORT of its head, as `ray start --head "
            "--port 6379` has it.",
            param="address",
        )
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        _accepts(address, None)
        return
    token = auth_token()
    if token is None:
        raise Unauthenticated(
            "There is no token for the Ray cluster: set RAY_AUTH_TOKEN_PATH to the file that holds it, or "
            "RAY_AUTH_TOKEN.",
            param="ray_token",
        )
    if not _accepts(address, token):
        raise Unauthenticated(
            f"The Ray cluster at {address} refuses this token: it was started with another one.", param="ray_token"
        )
    if _accepts(address, None):
        raise Unauthenticated(
            f"The Ray cluster at {address} requires no token, so that any client can run code there: start it "
            "with RAY_AUTH_MODE=token, or set RAY_AUTH_MODE=disabled here too.",
            param="ray_token",
        )


def auth_token() -> str | None:
    """The token of this process, found where Ray looks for it; None where there is none.

    Raises Unauthenticated where the file RAY_AUTH_TOKEN_PATH cannot be read.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    configured = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(configured) if configured else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        if configured:
            raise Unauthenticated(
                f"The token of the Ray cluster cannot be read from {path} (RAY_AUTH_TOKEN_PATH): "
                f"{type(error).__name__}.",
                param="ray_token",
            ) from None
        return None


def _accepts(address: str, token: str | None) -> bool:
    """Return True if the head accepts this token, or none; raises Unavailable where no cluster answers."""
    try:
        import grpc
    except ModuleNotFoundError:
        raise Unavailable(NOT_INSTALLED) from None
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    certificates = _certificates()
    if certificates is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*certificates))
    with channel:
        try:
            channel.unary_unary(_ALIVE)(b"", timeout=ANSWER_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            code = error.code()
            if code == grpc.StatusCode.UNAUTHENTICATED:
                return False
            raise Unavailable(f"No Ray cluster answers at {address} ({code.name.lower()}).") from None
    return True


def _certificates() -> tuple[bytes, ...] | None:
    """The authority's certificate, then key and certificate of this node, where Ray finds them; None without TLS.

    Raises Unavailable where a variable is missing or its file cannot be read.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    try:
        return tuple(Path(os.environ[name]).read_bytes() for name in _TLS)
    except KeyError as error:
        raise Unavailable(f"RAY_USE_TLS is set, and {error.args[0]} names no file.") from None
    except OSError as error:
        raise Unavailable(f"RAY_USE_TLS is set, and a file of {', '.join(_TLS)} cannot be read: {error}.") from None


def _connection_problem(address: str | None, error: Exception) -> str:
    if address is None:
        return f"A Ray cluster could not be started on this machine ({type(error).__name__}: {str(error)[:200]})."
    return (
        f"The Ray cluster at {address} answers, and this machine has no node of it: `ray start --address {address}` "
        "starts one, with --num-cpus 0 where nothing is to run here."
    )
