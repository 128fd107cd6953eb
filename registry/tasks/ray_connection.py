"""The connection of this process to a Ray cluster, which must ask for a token.

Used by whatever sends work to Ray: inference replicas, sweeps, evaluations. Ray is an extra (`adaptersoup[ray]`),
imported here and by those users alone, in functions. Whoever reaches a cluster without a token runs code on it, so
that one is refused unless the operator sets `RAY_AUTH_MODE=disabled`. Ray's own variables name the token
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
"""Where all of a local cluster listens: Ray takes 127.0.0.1 to mean the address by which others reach this machine."""
ANSWER_SECONDS = 5.0
"""How long a cluster may take to answer the first question."""
_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""The call by which Ray's own nodes ask a head whether it is there."""
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of what its next version does
}
"""What Ray reads of the environment, as its processes inherit it; what the operator has set stays."""
_PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "31536000"}
"""Of a process that uses a cluster: Ray would end it when the head has been away for a minute."""

_TLS = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")


@contextmanager
def ray_connection(address: str | None) -> Iterator[None]:
    """Connect to the cluster whose head is at `HOST:PORT`, or, without an address, to a new one of this machine.

    The new one listens on loopback and ends with the connection. An address needs a node of that cluster on this
    machine (`ray start --address HOST:PORT`). Raises Unavailable where Ray is not installed or nothing answers,
    Unauthenticated where the token is missing, wrong or not asked for, and InvalidParameter for an address of another
    form. A process is connected to one cluster at a time.
    """
    prepare_environment()
    if address is not None:
        _set(_PATIENCE)
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
        raise Unavailable(_why(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def prepare_environment() -> None:
    """Set what Ray reads of the environment: call it before Ray is imported, or any process of it started."""
    _set(_ENVIRONMENT)


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def check_cluster(address: str) -> None:
    """Ask the head of a cluster whether it is there and takes this token, which Ray itself would try for 20 seconds.

    Raises as `ray_connection`.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InvalidParameter(
            f"'{address[:200]}' is not the address of a Ray cluster: it is HOST:PORT of its head, as `ray start --head "
            "--port 6379` has it.",
            param="address",
        )
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        _ask(address, None)
        return
    token = auth_token()
    if token is None:
        raise Unauthenticated(
            "There is no token for the Ray cluster: set RAY_AUTH_TOKEN_PATH to the file that holds it, or "
            "RAY_AUTH_TOKEN.",
            param="ray_token",
        )
    if not _ask(address, token):
        raise Unauthenticated(
            f"The Ray cluster at {address} refuses this token: it was started with another one.", param="ray_token"
        )
    if _ask(address, None):
        raise Unauthenticated(
            f"The Ray cluster at {address} asks for no token, so that whoever reaches it runs code there: start it "
            "with RAY_AUTH_MODE=token, or set RAY_AUTH_MODE=disabled here too.",
            param="ray_token",
        )


def auth_token() -> str | None:
    """The token of this process, where Ray itself looks for it; None where there is none.

    Raises Unauthenticated where the file that is named for it cannot be read.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        if named:
            raise Unauthenticated(
                f"The token of the Ray cluster cannot be read from {path} (RAY_AUTH_TOKEN_PATH): "
                f"{type(error).__name__}.",
                param="ray_token",
            ) from None
        return None


def _ask(address: str, token: str | None) -> bool:
    """Whether the head takes this token, or none; raises Unavailable where nothing of Ray answers."""
    try:
        import grpc
    except ModuleNotFoundError:
        raise Unavailable(NOT_INSTALLED) from None
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    certificates = _certificates()
    opened = (
        grpc.insecure_channel(address)
        if certificates is None
        else grpc.secure_channel(address, grpc.ssl_channel_credentials(*certificates))
    )
    with opened as channel:
        try:
            channel.unary_unary(_ALIVE)(b"", timeout=ANSWER_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            code = error.code()
            if code == grpc.StatusCode.UNAUTHENTICATED:
                return False
            raise Unavailable(f"No Ray cluster answers at {address} ({code.name.lower()}).") from None
    return True


def _certificates() -> tuple[bytes, ...] | None:
    """Of the authority, then key and certificate of this node, from where Ray reads them; None without RAY_USE_TLS.

    Raises Unavailable where one is not named or cannot be read.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    try:
        return tuple(Path(os.environ[name]).read_bytes() for name in _TLS)
    except KeyError as error:
        raise Unavailable(f"RAY_USE_TLS is set, and {error.args[0]} names no file.") from None
    except OSError as error:
        raise Unavailable(f"RAY_USE_TLS is set, and a file of {', '.join(_TLS)} cannot be read: {error}.") from None


def _why(address: str | None, error: Exception) -> str:
    if address is None:
        return f"A Ray cluster could not be started on this machine ({type(error).__name__}: {str(error)[:200]})."
    return (
        f"The Ray cluster at {address} answers, and this machine has no node of it: `ray start --address {address}` "
        "starts one, with --num-cpus 0 where nothing is to run here."
    )
