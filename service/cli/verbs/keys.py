"""`soup keys`: who may do what. Needs a key with scope admin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from service.cli.moments import moment
from service.cli.output import columns
from service.cli.remote import Remote, verb

app = typer.Typer(help="Make, list and revoke keys.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)


class Scope(StrEnum):
    """`registry.names.KeyScope` as an enumeration: typer takes no list of a Literal."""

    READ = "read"
    WRITE = "write"
    INFER = "infer"
    ADMIN = "admin"


def _end(text: str) -> datetime:
    """The moment of `90d` from now, or of a date."""
    if not (text.endswith("d") and text[:-1].isdecimal()):
        return moment(text)
    try:
        return datetime.now(UTC) + timedelta(days=int(text[:-1]))
    except OverflowError:
        raise typer.BadParameter(f"'{text}' is more days than there are.") from None


@app.command()
@verb
def create(
    remote: Remote,
    name: Annotated[str, typer.Argument(help="What it is for, for people.", metavar="NAME")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What it may do; may be repeated. By default read, write and infer."),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="A namespace it sees; may be repeated. By default all.")
    ] = None,
    expires: Annotated[
        datetime | None,
        typer.Option(
            parser=_end,
            metavar="90d|DATE",
            help="When it ends: in so many days, or at a date (UTC). By default never.",
        ),
    ] = None,
) -> None:
    """Make a key and print its secret, which is shown only now.

    \b
    Examples:
      soup keys create ci --scope read --scope write --namespace team
      export SOUP_KEY=$(soup keys create notebook)
      soup keys create guest --scope infer --expires 90d
    """
    key = remote.client.create_key(
        name,
        scopes=[s.value for s in scope or (Scope.READ, Scope.WRITE, Scope.INFER)],
        namespaces=namespace or None,
        expires_at=expires,
    )
    remote.answer(key, key["secret"], said=f"Key {key['id']}: keep the secret now, it is not shown again.")


@app.command()
@verb
def ls(remote: Remote) -> None:
    """List keys, without their secrets.

    \b
    Examples:
      soup keys ls
      soup keys ls --json
    """
    keys = remote.client.keys()
    header = ("id", "name", "begins", "namespaces", "scopes", "created", "expires", "revoked")
    rows = [
        (k["id"], k["name"], k["prefix"], "all" if k["namespaces"] is None else k["namespaces"], k["scopes"],
         str(k["created_at"])[:10], str(k["expires_at"])[:10] if k.get("expires_at") else "",
         str(k["revoked_at"])[:10] if k.get("revoked_at") else "")
        for k in keys
    ]  # fmt: skip
    remote.answer({"object": "list", "data": keys}, columns(header, rows))


@app.command()
@verb
def rm(
    remote: Remote, ids: Annotated[list[str], typer.Argument(help="Ids as `soup keys ls` shows them.", metavar="ID")]
) -> None:
    """Revoke keys, from the next request on.

    \b
    Examples:
      soup keys rm key-1234
    """
    revoked = [remote.client.revoke_key(key_id) for key_id in ids]
    answer = revoked[0] if len(ids) == 1 else {"object": "list", "data": revoked}
    remote.answer(answer, *(key["id"] for key in revoked))
