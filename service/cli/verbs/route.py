"""`soup route`: a proxy before several servers of one database. It loads no model, and no torch."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from registry.errors import InvalidParameter
from service.cli.commands import command
from service.cli.listening import address_of, listening_socket, until_signal
from service.cli.output import as_json, data, talk
from service.cli.setting_flags import settings_of

if TYPE_CHECKING:
    import socket

    from service.settings import Settings


@dataclass(frozen=True)
class RouterOptions:
    """What the flags say of the settings, by the settings' names."""

    database_url: Annotated[
        str | None, typer.Option(help="URL of the database; one with a password belongs into SOUP_DATABASE_URL.")
    ] = None
    host: Annotated[str | None, typer.Option(help="Address to listen on (SOUP_HOST).")] = None
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one (SOUP_PORT).")] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="Level of the JSON log.")
    ] = None


@command
def route(
    options: RouterOptions,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Start a router before several servers.

    It finds the servers in the database that they share (SOUP_DATABASE_URL), those that say where they are reached
    (SOUP_REPLICA_URL), and sends an adapter's requests to one of them, or to two where they are many.

    \b
    Examples:
      soup route --port 8080
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db.example/soup soup route --host 0.0.0.0
    """
    from service.settings import Settings

    settings = settings_of(Settings, **asdict(options))
    if settings.database_url is None or settings.database.startswith("sqlite"):
        raise InvalidParameter(
            "A router finds its servers in their PostgreSQL: set SOUP_DATABASE_URL to the one that they share.",
            param="database_url",
        )
    with listening_socket(settings.host, settings.port) as listener:
        run(settings, listener, json=json)


def run(settings: Settings, listener: socket.socket, *, json: bool = False) -> None:
    """Route until SIGINT or SIGTERM."""
    from registry.catalogue import Database
    from service.http.connections import server_config
    from service.logs import configure_logging
    from service.router.app import Router
    from service.storage import check_serves

    configure_logging(settings.log_level)
    with closing(Database(settings.database, pool_size=settings.database_pool)) as database:
        check_serves(database)
        router = Router(database, settings)

        def ready() -> None:
            url = address_of(listener)
            if json:
                as_json({"object": "router", "url": url}, lines=True)
            else:
                data(url)
            talk(f"servers: {len(router.fleet.members)}")

        until_signal(server_config(router, settings), listener, ready=ready)
