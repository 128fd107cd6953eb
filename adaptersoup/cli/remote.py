"""What every verb that talks to a server has: --url, --key and --json, and a client that is closed afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate

import typer

from adaptersoup.cli.commands import as_command, spread
from adaptersoup.cli.flags import keyword
from adaptersoup.cli.output import as_json, data, data_width, talk
from adaptersoup.cli.setting_flags import settings_of
from adaptersoup.client import SoupClient
from adaptersoup.tables import columns, one_line
from registry.errors import SoupError
from service.settings import ClientSettings

COMPLETED, COMPLETION_SECONDS = 500, 2.0
"""Versions that are looked at, and seconds that are waited, for the shell's completion of a name."""


def complete_ref(incomplete: str) -> list[str]:
    """For the shell: names that begin so, as the server of the environment has them; none where it does not answer."""
    namespace, stroke, _ = incomplete.partition("/")
    try:
        with connect(None, None, timeout=COMPLETION_SECONDS) as client:
            rows = client.adapters(limit=COMPLETED, namespace=namespace if stroke else None)
            names = dict.fromkeys(f"{row['namespace']}/{row['name']}" for row in rows)
    except SoupError:
        return []
    return [one_line(name) for name in names if name.startswith(incomplete)]


ModelArgument = Annotated[
    str,
    typer.Argument(
        help="base/<id>, namespace/name[@version or alias], or sha256:...", metavar="MODEL", autocompletion=complete_ref
    ),
]
RefArgument = Annotated[
    str,
    typer.Argument(help="namespace/name[@version or alias], or sha256:...", metavar="REF", autocompletion=complete_ref),
]
SAMPLE_FORMS = '.jsonl(.gz) of {"text"}, .txt (a passage a paragraph), or - for stdin.'
SampleOption = Annotated[Path, typer.Option("--sample", help=SAMPLE_FORMS)]


@dataclass(frozen=True)
class Remote:
    """The client of one run of a verb, and whether the verb prints JSON."""

    client: SoupClient
    json: bool

    def answer(self, value: Any, *lines: str, said: str = "") -> None:
        """Print what came of the verb: the value where JSON was asked for, else these lines; `said` goes to stderr."""
        if self.json:
            as_json(value)
            return
        for line in lines:
            data(line)
        if said:
            talk(said)

    def answer_rows(
        self,
        values: Sequence[Any],
        header: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        empty: str = "Nothing matches.",
    ) -> None:
        """Print a list: its values as JSON, else a table with a row for each of them; `empty` where there are none."""
        table = [columns(header, rows, within=data_width())] if rows else []
        self.answer({"object": "list", "data": values}, *table, said="" if rows else empty)


@dataclass(frozen=True)
class Address:
    """Where the server is, and with which key it is asked."""

    url: Annotated[str | None, typer.Option(help="Address of the server (SOUP_URL).", metavar="URL")] = None
    key: Annotated[str | None, typer.Option(help="Key to send (SOUP_KEY; else <data>/admin.key).", metavar="KEY")] = (
        None
    )

    def client(self, context: typer.Context) -> SoupClient:
        """A client for it, made by what the context holds where that is a function (in tests)."""
        make = context.obj if callable(context.obj) else connect
        client: SoupClient = make(self.url, self.key)
        return client


def connect(url: str | None, key: str | None, timeout: float | None = None) -> SoupClient:
    """A client by flags, environment and the key file of a server on this machine."""
    settings = settings_of(ClientSettings, url=url, key=key, timeout=timeout)
    return SoupClient(settings.url, settings.secret(), timeout=settings.timeout)


def verb(function: Callable[Concatenate[Remote, ...], None]) -> Callable[..., None]:
    """A verb `function(remote, ...)` as typer reads it: --url, --key and --json join its own options."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    json = typer.Option("--json", help="Print the server's answer as JSON.")
    added = [keyword("address", Address), keyword("as_json", Annotated[bool, json], default=False)]
    options, arguments = spread([keyword("context", typer.Context), *own, *added])

    def run(**values: Any) -> None:
        given = arguments(values)
        context, address, as_json = (given.pop(name) for name in ("context", "address", "as_json"))
        with address.client(context) as client:
            function(Remote(client, as_json), **given)

    return as_command(run, options, like=function)
