"""`soup namespaces`: the settings of a namespace. Changing them needs a key with scope admin."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.spec import TuningSetting
from service.cli.output import columns
from service.cli.remote import Remote, verb
from service.client.connection import Json

app = typer.Typer(
    help="Show and change the settings of namespaces.", no_args_is_help=True, rich_markup_mode=None,
    add_completion=False,
)  # fmt: skip
Name = Annotated[str, typer.Argument(help="The part of names before the slash.", metavar="NS")]


@app.command()
@verb
def show(remote: Remote, namespace: Name) -> None:
    """Show the settings of a namespace.

    \b
    Examples:
      soup namespaces show team
    """
    _answer(remote, remote.client.namespace(namespace))


@app.command(name="set")
@verb
def change(
    remote: Remote,
    namespace: Name,
    tuning: Annotated[
        TuningSetting,
        typer.Option(help="Whether soups may be tuned in it; default: where a request leaves the choosing open."),
    ],
) -> None:
    """Change the settings of a namespace.

    \b
    Examples:
      soup namespaces set team --tuning forbid
    """
    _answer(remote, remote.client.change_namespace(namespace, tuning=tuning))


def _answer(remote: Remote, settings: Json) -> None:
    remote.answer(settings, columns(("namespace", "tuning"), [(settings["namespace"], settings["tuning"])]))
