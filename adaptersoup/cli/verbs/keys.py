"""`soup keys`: makes, lists, changes and revokes keys. Needs a key with scope admin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from adaptersoup.cli.failures import Failures
from adaptersoup.cli.flags import moment
from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.remote import Remote, verb

app = Verbs(help="Create, list, change and revoke keys.", no_args_is_help=True)


SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Id = Annotated[str, typer.Argument(help="Id of the key, from `soup keys ls`.", metavar="ID")]


class Scope(StrEnum):
    """`registry.names.KeyScope` as an enumeration, since typer does not support lists of a Literal."""

    READ = "read"
    WRITE = "write"
    INFER = "infer"
    ADMIN = "admin"


def _expiry(text: str) -> datetime:
    """The datetime `90d` from now, or of an ISO date; raises BadParameter."""
    if not (text.endswith("d") and text[:-1].isdecimal()):
        return moment(text)
    try:
        return datetime.now(UTC) + timedelta(days=int(text[:-1]))
    except (OverflowError, ValueError):  # the latter beyond 4,300 digits
        raise typer.BadParameter(f"'{text[:40]}' is beyond the last date.") from None


@app.command()
@verb
def create(
    remote: Remote,
    name: Annotated[str, typer.Argument(help="Purpose of the key, for people.", metavar="NAME")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="Permission; repeatable. By default read, write and infer."),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace that the key can see; repeatable. By default all.")
    ] = None,
    expires: Annotated[
        datetime | None,
        typer.Option(
            parser=_expiry,
            metavar="90d|DATE",
            help="Expiry: a number of days, or a date (UTC). By default never.",
        ),
    ] = None,
) -> None:
    """Create a key and print its secret, which is not shown again.

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
    remote.answer(key, key["secret"], note=f"Key {key['id']}: keep the secret now, it is not shown again.")


@app.command()
@verb
def ls(
    remote: Remote,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of keys, oldest first; by default all.")
    ] = None,
) -> None:
    """List keys, without their secrets.

    \b
    Examples:
      soup keys ls
      soup keys ls --limit 100 --json
    """
    keys = list(remote.client.keys(limit=limit))
    header = ("id", "name", "begins", "namespaces", "scopes", "created", "used", "expires", "revoked")
    days = ("created_at", "last_used_at", "expires_at", "revoked_at")
    rows = [
        (
            k["id"],
            k["name"],
            k["prefix"],
            "all" if k["namespaces"] is None else k["namespaces"],
            k["scopes"],
            *(str(k[name])[:10] if k.get(name) else "" for name in days),
        )
        for k in keys
    ]
    remote.answer_rows(keys, header, rows)


@app.command(name="set")
@verb
def change(
    remote: Remote,
    key_id: Id,
    name: Annotated[str | None, typer.Option(help="New purpose of the key.")] = None,
    scope: Annotated[list[Scope] | None, typer.Option("--scope", help="New permission; repeatable.")] = None,
    namespace: Annotated[list[str] | None, typer.Option(help="New namespace, '*' for all; repeatable.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="90d|DATE|never", help="New expiry: a number of days, a date (UTC), or never."),
    ] = None,
) -> None:
    """Change a key from the next request on.

    Options that you leave out change nothing.

    \b
    Examples:
      soup keys set key-1234 --scope read --scope infer
      soup keys set key-1234 --namespace team --expires 30d
    """
    changes: dict[str, Any] = {} if name is None else {"name": name}
    if scope:
        changes["scopes"] = [s.value for s in scope]
    if namespace:
        changes["namespaces"] = None if namespace == ["*"] else namespace
    if expires is not None:
        changes["expires_at"] = None if expires == "never" else _expiry(expires)
    if not changes:
        raise typer.BadParameter("Name something to change, such as --scope.")
    remote.answer(remote.client.change_key(key_id, **changes), key_id)


@app.command()
@verb
def rotate(
    remote: Remote,
    key_id: Id,
    grace: Annotated[
        str,
        typer.Option(help="Time that the old secret still works: 90s, 30m, 12h, and at most 7d.", metavar="TIME"),
    ] = "0s",
) -> None:
    """Replace the secret of a key, and print the new one, which is not shown again.

    Id, scopes, namespaces, limits and expiry stay. On the server's machine the command updates admin.key.

    \b
    Examples:
      soup keys rotate key-1234 --grace 12h
    """
    key = remote.client.rotate_key(key_id, grace_seconds=_seconds(grace))
    remote.answer(key, key["secret"], note=f"Key {key['id']}: keep the secret now, it is not shown again.")


def _seconds(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 10 and unit in SECONDS):
        raise typer.BadParameter(f"'{text[:40]}' is not a duration of at most 9 digits, such as 90s, 30m, 12h or 7d.")
    return int(number) * SECONDS[unit]


@app.command()
@verb
def rm(
    remote: Remote, ids: Annotated[list[str], typer.Argument(help="Ids of keys, from `soup keys ls`.", metavar="ID")]
) -> None:
    """Revoke keys from the next request on.

    \b
    Examples:
      soup keys rm key-1234
    """
    revoked, failed = [], Failures()
    for key_id in ids:
        with failed.of(key_id):
            revoked.append(remote.client.revoke_key(key_id))
    if revoked:
        answer = revoked[0] if len(ids) == 1 else {"object": "list", "data": revoked}
        remote.answer(answer, *(key["id"] for key in revoked))
    failed.end()
