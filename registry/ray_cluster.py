"""The connection of this process to a Ray cluster, which is told apart from strangers by a token.

Used by whatever sends work to Ray: inference replicas, sweeps, evaluations. Ray is an extra (`adaptersoup[ray]`) and is
imported here and by those users alone, in functions. Whoever reaches a cluster without a token runs code on
it, so that one is refused unless the operator has said `RAY_AUTH_MODE=disabled`; Ray's own variables say which token
(`RAY_AUTH_TOKEN`, else the file that `RAY_AUTH_TOKEN_PATH` names, else `~/.ray/auth_token`). No usage statistics
are sent.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import InvalidParameter, Unauthenticated, Unavailable

log = logging.getLogger(__name__)
NOT_INSTALLED = "This needs Ray, which is not installed: pip install 'adaptersoup[ray]'."
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Where all of a local cluster listens: 127.0.0.1 Ray takes to mean the address by which others reach this machine."""
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


@dataclass(frozen=True)
class LocalCluster:
    """A cluster of one machine, which ends with the connection to it. All of it listens on loopback.

    `cpus` is how many tasks of one CPU it runs at once (None: one for each core), `store_bytes` the size of its object
    store (None: Ray's choice, a part of the memory). The dashboard can run code on the cluster, as every part can;
    it is off, and listens on `dashboard_host` where it is on.
    """

    cpus: int | None = None
    store_bytes: int | None = None
    dashboard: bool = False
    dashboard_host: str = "127.0.0.1"


@contextmanager
def ray_cluster(place: str | LocalCluster) -> Iterator[None]:
    """Be connected to a cluster: to the one whose head has the address `HOST:PORT`, or to a new one of this machine.

    An address needs a node of that cluster on this machine (`ray start --address HOST:PORT`). Raises Unavailable where
    Ray is not installed or nothing answers there, Unauthenticated where the token is missing, wrong or not asked for,
    and InvalidParameter for an address of another form. A process is connected to one cluster at a time.
    """
    prepare_environment()
    if isinstance(place, str):
        _set(_PATIENCE)
        check_cluster(place)
    try:
        import ray
    except ModuleNotFoundError:
        raise Unavailable(NOT_INSTALLED) from None
    _log_news()
    options: dict[str, Any] = {"address": place} if isinstance(place, str) else _new(place)
    try:
        ray.init(**options, configure_logging=False, log_to_driver=False, namespace="soup")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Unavailable(_why(place, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _log_news() -> None:
    """Have Ray log what becomes of a cluster's machines: it prints that to standard output, where commands write JSON.

    Ray has no option for it.
    """
    from ray._private import worker

    def told(data: Mapping[str, Any], ignore_prefix: bool) -> None:  # noqa: ARG001 (Ray gives it)
        for line in data["lines"]:
            log.warning("Ray: %s", line)

    worker.print_to_stdstream = told


def prepare_environment() -> None:
    """Set what Ray reads of the environment: call it before Ray is imported, or any process of it started."""
    _set(_ENVIRONMENT)


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def check_cluster(address: str) -> None:
    """Ask the head of a cluster whether it is there and takes this token, which Ray itself would try for 20 seconds.

    Raises as `ray_cluster`.
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
    if said := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return said
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


def _certificates() -> tuple[bytes, bytes, bytes] | None:
    """Of the authority, then key and certificate of this node, from where Ray reads them; None without RAY_USE_TLS.

    Raises Unavailable where one is not named or cannot be read.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    authority, key, own = (_file_of(name) for name in ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT"))
    return authority, key, own


def _file_of(name: str) -> bytes:
    try:
        return Path(os.environ[name]).read_bytes()
    except KeyError:
        raise Unavailable(f"RAY_USE_TLS is set, and {name} names no file.") from None
    except OSError as error:
        raise Unavailable(f"The file that {name} names cannot be read: {type(error).__name__}.") from None


def _new(place: LocalCluster) -> dict[str, object]:
    """What Ray is told of a new cluster."""
    if place.dashboard and not _is_loopback(place.dashboard_host) and os.environ.get("RAY_AUTH_MODE") == "disabled":
        raise Unauthenticated(
            f"Without a token the dashboard of Ray listens on loopback alone, not on {place.dashboard_host}."
        )
    return {
        "address": "local",
        "num_cpus": place.cpus,
        "object_store_memory": place.store_bytes,
        "include_dashboard": place.dashboard,
        "dashboard_host": place.dashboard_host,
        "_node_ip_address": LOOPBACK,
    }


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _why(place: str | LocalCluster, error: Exception) -> str:
    if isinstance(place, LocalCluster):
        return f"A Ray cluster could not be started on this machine ({type(error).__name__}: {str(error)[:200]})."
    return (
        f"The Ray cluster at {place} answers, and this machine has no node of it: `ray start --address {place}` starts "
        "one, with --num-cpus 0 where nothing is to run here."
    )
