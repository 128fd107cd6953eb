"""`soup serve`: builds the runtime from the settings, starts it, and serves it until a signal arrives.

`/healthz` answers while base models are loaded; the address is printed once they are. The runtime is always stopped at
the end, so that running jobs return to the queue and the data folder is free for the next server.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from adaptersoup.cli.commands import command
from adaptersoup.cli.failures import OK, exit_code, explain
from adaptersoup.cli.output import as_json, data, talk
from adaptersoup.cli.setting_flags import settings_of
from registry.errors import InvalidParameter, NotFound, SoupError, Unavailable
from service.settings import Settings, calm_threads

if TYPE_CHECKING:
    import uvicorn

    from service.engine_process.child import EngineChild


STOP_SECONDS = 9.0
"""Longest duration of a stop; threads that still run are abandoned, and the next server repeats their work."""


@dataclass(frozen=True)
class ServerOptions:
    """The options for settings of the server, by their names."""

    bases: Annotated[Path | None, typer.Option(help="TOML file with the allowlist of base models (SOUP_BASES).")] = None
    data: Annotated[Path | None, typer.Option(help="Folder of database, blobs and admin.key (SOUP_DATA).")] = None
    host: Annotated[str | None, typer.Option(help="Address to listen on (SOUP_HOST).")] = None
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 for a free one (SOUP_PORT).")] = None
    role: Annotated[
        Literal["all", "api", "worker"] | None,
        typer.Option(help="api runs no jobs; worker runs jobs, and answers only health checks (SOUP_ROLE)."),
    ] = None
    no_auth: Annotated[bool | None, typer.Option("--no-auth", help="Serve without keys, on this machine only.")] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="Level of the JSON log.")
    ] = None


@command
def serve(
    options: ServerOptions,
    json: Annotated[bool, typer.Option("--json", help="Print address and key file as JSON.")] = False,
) -> None:
    """Start the server.

    Prints its address on stdout when it is ready; the log goes to stderr. Options override the SOUP_ variables of
    docs/reference/settings.md.

    \b
    Examples:
      soup serve --bases bases.toml
      SOUP_DATA=/srv/soup soup serve --bases bases.toml --host 0.0.0.0 --port 80
      soup serve --bases bases.toml --port 0 --json
    """
    settings = settings_of(Settings, **asdict(options))
    if settings.bases is not None and not settings.bases.is_file():  # checked here, before torch is loaded
        raise NotFound(f"There is no allowlist of base models at {settings.bases} (--bases or SOUP_BASES).")
    # without keys only the address protects the server, because a Host header is easily forged
    if settings.no_auth and not is_loopback(settings.host):
        raise InvalidParameter(
            f"Without keys, the server must not listen on {settings.host}, which other machines can reach: "
            "drop --host (SOUP_HOST), or drop --no-auth (SOUP_NO_AUTH) and use keys.",
            param="host",
        )
    with listening_socket(settings.host, settings.port) as listener:
        run(settings, listener, json=json)


def is_loopback(host: str) -> bool:
    """Return True if an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def run(settings: Settings, listener: socket.socket, *, json: bool = False) -> None:
    """Serve until SIGINT or SIGTERM; prints the address once base models are loaded. Imports torch."""
    calm_threads()
    talk("loading base models" if settings.bases else "no base model: name an allowlist with --bases or SOUP_BASES")
    from service.engine_process.child import engine_child

    with engine_child() as child:  # it imports torch while this process does
        _run(settings, listener, child, json=json)


def _run(settings: Settings, listener: socket.socket, child: EngineChild, *, json: bool) -> None:
    from registry.cores import use_cores
    from service.http.app import create_app
    from service.http.connections import server_config
    from service.observability.logs import configure_logging
    from service.runtime import Runtime

    gc.freeze()  # a full collection would traverse all imported modules, which takes 0.3 s
    configure_logging(settings.log_level)
    use_cores(1)  # all are for the engine's process
    runtime = Runtime(settings, engine_child=child)
    stopped_at: float | None = None

    def ready() -> None:
        runtime.wait_for_bases()
        if stopped_at is None:
            runtime.join()
            _announce(settings, listener, json=json)

    def stopping() -> None:
        nonlocal stopped_at
        stopped_at = time.monotonic()
        runtime.begin_stop()

    try:
        runtime.start(wait=False)
        config = server_config(create_app(runtime), settings)
        until_signal(config, listener, ready=ready, stopping=stopping)
    finally:
        elapsed = 0.0 if stopped_at is None else time.monotonic() - stopped_at
        has_ended = runtime.stop(seconds=max(1.0, STOP_SECONDS - elapsed))
        error = sys.exception()
        if not has_ended and (error is None or isinstance(error, SoupError)):
            _end_at_once(error)


def _end_at_once(error: SoupError | None) -> None:
    """End the process, after `error` is printed: a thread that still computes could crash it at its end."""
    code = OK
    if error is not None:
        talk(explain(error))
        code = exit_code(error)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _announce(settings: Settings, listener: socket.socket, *, json: bool) -> None:
    url = address_of(listener)
    key = None if settings.no_auth else str(settings.admin_key_path)
    if json:
        as_json({"object": "server", "url": url, "admin_key": key}, lines=True)
    else:
        data(url)
    talk(f"documentation: {url}/docs")
    talk("no keys are asked for (--no-auth)" if key is None else f"admin key: {key}")


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address; raises Unavailable if the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the latter for a name that IDNA does not have, such as a..b
        raise Unavailable(f"{host} is not an address to listen on ({error}).") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen on {host} port {port} ({error.strerror}): stop the server on this port, or choose "
            "another with --port."
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{host}:{port}"


def until_signal(
    config: uvicorn.Config,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    stopping: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM; calls `stopping` when the shutdown begins.

    `ready` is called in a thread once requests are answered; its exception ends the server and is raised here.
    """
    from service.http.connections import BoundedServer

    class Server(BoundedServer):
        problem: Exception | None = None

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stopping()
            await super().shutdown(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                threading.Thread(target=self.get_ready, name="ready", daemon=True).start()

        def get_ready(self) -> None:
            try:
                ready()
            except Exception as error:
                self.problem, self.should_exit = error, True

    # uvicorn raises the signal that stopped it again, and the default handler would end the process before the runtime
    # is stopped
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server = Server(config)
    server.run(sockets=[listener])
    if server.problem is not None:
        raise server.problem
