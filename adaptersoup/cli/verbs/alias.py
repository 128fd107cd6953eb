"""`soup alias`: names for versions, such as `team/law@prod`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptersoup.cli.failures import Failures
from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.remote import RefArgument, Remote, verb
from registry.errors import InvalidName, PreconditionFailed
from registry.names import NameRef, parse_ref

app = Verbs(help="List, set and remove aliases of versions.", no_args_is_help=True)
AliasArgument = Annotated[str, typer.Argument(help="Name such as prod; not only digits.", metavar="ALIAS")]


@app.command()
@verb
def ls(remote: Remote, ref: RefArgument) -> None:
    """List the aliases of an adapter or soup.

    \b
    Examples:
      soup alias ls team/law
    """
    aliases = remote.client.aliases(ref)
    rows = [(row["alias"], row["ref"]) for row in aliases]
    remote.answer_rows(aliases, ("alias", "points at"), rows, empty=f"{ref} has no alias.")


@app.command("set")
@verb
def set_(
    remote: Remote,
    ref: Annotated[str, typer.Argument(help="namespace/name@version; without a version the newest.", metavar="REF")],
    alias: AliasArgument,
    instead_of: Annotated[
        int | None,
        typer.Option("--instead-of", min=1, help="Only if the alias still points at this version.", metavar="VERSION"),
    ] = None,
) -> None:
    """Point an alias at a version, even if it points at another one.

    \b
    Examples:
      soup alias set team/law@2 prod
      soup alias set team/law@3 prod --instead-of 2
      soup generate team/law@prod "The court held that"
    """
    row = remote.client.adapter(ref)
    name, version = f"{row['namespace']}/{row['name']}", int(row["version"])
    etag = None if instead_of is None else _etag(remote.client.aliases(name), name, alias, instead_of)
    answer = remote.client.put_alias(name, alias, version, if_match=etag)
    remote.answer(answer, f"{name}@{alias}", note=f"It points at {answer['ref']}.")


@app.command()
@verb
def rm(
    remote: Remote,
    ref: RefArgument,
    aliases: Annotated[list[str], typer.Argument(help="Aliases to remove; the versions stay.", metavar="ALIAS...")],
) -> None:
    """Remove aliases of an adapter or soup.

    \b
    Examples:
      soup alias rm team/law canary
    """
    name, removed, failed = _name_of(ref), [], Failures()
    for alias in aliases:
        with failed.of(f"{name}@{alias}"):
            remote.client.delete_alias(name, alias)
            removed.append(f"{name}@{alias}")
    remote.answer({"object": "list", "data": removed}, *removed)
    failed.end()


def _name_of(ref: str) -> str:
    parsed = parse_ref(ref)
    if not isinstance(parsed, NameRef) or parsed.version is not None or parsed.alias is not None:
        raise InvalidName(f"{ref} is not a name: give namespace/name without a version, then the alias.", param="ref")
    return str(parsed)


def _etag(aliases: list[dict[str, Any]], name: str, alias: str, version: int) -> str:
    """The etag of an alias that points at this version; raises PreconditionFailed if it does not."""
    row = next((row for row in aliases if row["alias"] == alias), None)
    if row is None or row["version"] != version:
        target = "is not set" if row is None else f"points at version {row['version']}"
        raise PreconditionFailed(f"{name}@{alias} {target}, and not at version {version}.", param="alias")
    return str(row["etag"])
