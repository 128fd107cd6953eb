"""`soup ray`: inference replicas on a Ray cluster, which generate for servers with SOUP_RAY_ADDRESS.

It connects to the cluster, not to a server; the cluster's token authorizes it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from adaptersoup.cli.commands import command
from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.output import answer, data_width, talk
from adaptersoup.cli.setting_flags import settings_of
from adaptersoup.tables import columns
from registry.errors import InvalidParameter, NotFound
from service.settings import Settings

app = Verbs(help="Generate on a Ray cluster.", no_args_is_help=True)
NEXT = "Servers started with SOUP_RAY_ADDRESS={} SOUP_RAY_APP={} generate there."
AS_JSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class ClusterFlags:
    """The options for the cluster and the name of its replicas, by the names of their settings."""

    ray_address: Annotated[
        str | None, typer.Option("--address", help="HOST:PORT of the cluster's head (SOUP_RAY_ADDRESS).")
    ] = None
    ray_app: Annotated[str | None, typer.Option("--name", help="Name of the replicas (SOUP_RAY_APP).")] = None


@dataclass(frozen=True)
class ScalingFlags:
    """The options for the number of replicas and the resources of each."""

    SECTION: ClassVar[str] = "Scaling"
    replicas: Annotated[int, typer.Option(min=1, help="Minimum number of replicas.")] = 1
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of replicas; by default --replicas.")
    ] = None
    target: Annotated[
        float | None, typer.Option(min=0.1, help="Target number of requests per replica; by default SOUP_ENGINE_ROWS.")
    ] = None
    cpus: Annotated[float, typer.Option(min=0, help="CPUs of each replica.")] = 1.0
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each replica.")] = 0.0
    seconds: Annotated[float, typer.Option(min=1, help="Maximum time for the replicas to start, in seconds.")] = 600.0


@app.command()
@command
def deploy(
    cluster: ClusterFlags,
    scaling: ScalingFlags,
    bases: Annotated[
        Path | None, typer.Option(help="TOML file with the allowlist of base models (SOUP_BASES).")
    ] = None,
    json: AS_JSON = False,
) -> None:
    """Put inference replicas on a Ray cluster, or change existing ones.

    They get the base models, the place of the blobs and the engine of the SOUP_ variables here, as a server would, and
    no key and no database. This machine has to be a node of the cluster.

    \b
    Examples:
      soup ray deploy --address 10.0.0.5:6379 --bases bases.toml
      SOUP_RAY_ADDRESS=10.0.0.5:6379 soup ray deploy --bases bases.toml --max-replicas 8 --cpus 4
    """
    if scaling.max_replicas is not None and scaling.max_replicas < scaling.replicas:
        raise typer.BadParameter(
            f"--max-replicas {scaling.max_replicas} is below --replicas {scaling.replicas}: raise it, or leave it out."
        )
    settings = _settings(cluster, bases=bases)
    if settings.bases is not None and not settings.bases.is_file():
        raise NotFound(f"There is no allowlist of base models at {settings.bases} (--bases or SOUP_BASES).")
    with _connected(settings):
        talk("starting replicas")
        _deploy(settings, scaling)
        state = _state(settings)
    _show(state, json=json)
    talk(NEXT.format(settings.ray_address, settings.ray_app))


@app.command()
@command
def status(cluster: ClusterFlags, json: AS_JSON = False) -> None:
    """Show the state of the replicas on a Ray cluster.

    \b
    Examples:
      soup ray status --address 10.0.0.5:6379
    """
    settings = _settings(cluster)
    with _connected(settings):
        state = _state(settings)
    _show(state, json=json)


@app.command()
@command
def remove(cluster: ClusterFlags, json: AS_JSON = False) -> None:
    """Remove the replicas from a Ray cluster.

    Requests that are not answered within 30 seconds fail.

    \b
    Examples:
      soup ray remove --address 10.0.0.5:6379
    """
    settings = _settings(cluster)
    from service.ray_serving import deployment

    with _connected(settings):
        deployment.remove(settings.ray_app)
    value = {"object": "ray_replicas", "name": settings.ray_app, "deleted": True}
    answer(value, json=json, note=f"removed the replicas '{settings.ray_app}'")


def _settings(cluster: ClusterFlags, **more: Any) -> Settings:
    settings = settings_of(Settings, **asdict(cluster), **more)
    if settings.ray_address is None:
        raise InvalidParameter(
            "Name the cluster: --address or SOUP_RAY_ADDRESS is HOST:PORT of its head.", param="ray_address"
        )
    return settings


def _deploy(settings: Settings, scaling: ScalingFlags) -> None:
    """Deploy on the cluster that this process is connected to; imports torch."""
    from service.engine_process.plan import plan_of
    from service.ray_serving import deployment

    scale = deployment.Scale(
        min_replicas=scaling.replicas,
        max_replicas=scaling.max_replicas or scaling.replicas,
        target_requests=scaling.target or float(settings.engine_rows),
        max_requests=max(2 * settings.engine_rows, math.ceil(scaling.target or 0)),
        max_queued=settings.engine_queue,
    )
    deployment.deploy(
        settings.ray_app, plan_of(settings), scale, cpus=scaling.cpus, gpus=scaling.gpus, seconds=scaling.seconds
    )


def _state(settings: Settings) -> dict[str, Any]:
    from service.ray_serving import deployment

    return deployment.state_of(settings.ray_app)


@contextmanager
def _connected(settings: Settings) -> Iterator[None]:
    import_module("grpc")  # a dependency of Ray, which may only be imported once its variables are set

    from registry.tasks.ray_connection import ray_connection

    assert settings.ray_address is not None
    with redirect_stdout(sys.stderr), ray_connection(settings.ray_address):  # Ray prints messages of its nodes
        yield


def _show(replicas: dict[str, Any], *, json: bool) -> None:
    states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(replicas["replicas"].items())) or "none"
    row = (replicas["name"], replicas["status"].lower(), states)
    table = columns(("name", "status", "replicas"), [row], within=data_width())
    answer(replicas, table, json=json, note=replicas["message"])
