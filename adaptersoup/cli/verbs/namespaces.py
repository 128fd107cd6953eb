"""`soup namespaces`: the settings of a namespace. Changing them needs a key with scope admin."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptersoup.cli.flags import number_or_default
from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.output import data_width
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.client.answers import Json
from adaptersoup.tables import columns
from registry.spec import TuningSetting

app = Verbs(help="Show and change the settings of namespaces.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Namespace: the part of names before the slash.", metavar="NS")]


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
        TuningSetting | None,
        typer.Option(help="Allow or forbid effort tune; default makes it the effort of cooks that name none."),
    ] = None,
    protect: Annotated[
        list[str] | None, typer.Option(help="Alias that only an admin can move or remove; repeatable.")
    ] = None,
    unprotect: Annotated[list[str] | None, typer.Option(help="Alias to protect no longer; repeatable.")] = None,
    unnamed_soup_days: Annotated[
        int | None,
        typer.Option(
            parser=number_or_default,
            metavar="N|default",
            help="Days after which an unused unnamed soup is retired; 0: never.",
        ),
    ] = None,
) -> None:
    """Change the settings of a namespace.

    Options that you leave out change nothing.

    \b
    Examples:
      soup namespaces set team --tuning forbid
      soup namespaces set team --protect prod --unnamed-soup-days 30
    """
    changes: dict[str, Any] = {} if tuning is None else {"tuning": tuning}
    if unnamed_soup_days is not None:
        changes["unnamed_soup_days"] = None if unnamed_soup_days < 0 else unnamed_soup_days
    if not (changes or protect or unprotect):
        raise typer.BadParameter("Name a setting to change, such as --tuning.")
    if not (protect or unprotect):
        _answer(remote, remote.client.change_namespace(namespace, **changes))
        return
    settings = remote.client.namespace(namespace)
    aliases = {*settings["protected_aliases"], *(protect or ())} - set(unprotect or ())
    changes["protected_aliases"] = sorted(aliases)
    _answer(remote, remote.client.change_namespace(namespace, if_match=settings["etag"], **changes))


def _answer(remote: Remote, settings: Json) -> None:
    days = settings["unnamed_soup_days"]
    row = (
        settings["namespace"],
        settings["tuning"],
        ", ".join(settings["protected_aliases"]) or "-",
        "as the server" if days is None else "for ever" if days == 0 else f"{days} days",
    )
    remote.answer(
        settings, columns(("namespace", "tuning", "protected aliases", "unnamed soups"), [row], within=data_width())
    )
