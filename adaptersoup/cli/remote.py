"""Verbs that call a server: their options --url, --key and --json, and a client that is closed afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Concatenate

import httpx2
import typer

from adaptersoup.cli.commands import arguments_of, as_command
from adaptersoup.cli.flags import keyword
from adaptersoup.cli.output import answer, data_width, progress_bar, talk
from adaptersoup.cli.setting_flags import settings_of
from adaptersoup.client import SoupClient
from adaptersoup.client.answers import DONE, Json
from adaptersoup.tables import columns, one_line
from registry.errors import SoupError, Unavailable
from service.settings import ClientSettings

COMPLETED, COMPLETION_SECONDS = 500, 2.0
"""Most versions to list, and seconds to wait, for the shell's completion of a name."""


def complete_ref(incomplete: str) -> list[str]:
    """Names that begin with `incomplete`, for the shell; none if the server of the environment does not answer."""
    namespace, slash, _ = incomplete.partition("/")
    try:
        with connect(None, None, timeout=COMPLETION_SECONDS) as client:
            rows = client.adapters(limit=COMPLETED, namespace=namespace if slash else None)
            names = dict.fromkeys(f"{row['namespace']}/{row['name']}" for row in rows)
    except SoupError:
        return []
    return [one_line(name) for name in names if name.startswith(incomplete)]


_MODELS = "base/<id>, namespace/name[@version or alias], sha256:..., or a mixture such as team/law*0.7+team/style*0.3"
ModelArgument = Annotated[str, typer.Argument(help=_MODELS, metavar="MODEL", autocompletion=complete_ref)]
PromptedModel = Annotated[
    str,
    typer.Argument(
        help=f"{_MODELS}; auto chooses adapters by the prompt.", metavar="MODEL", autocompletion=complete_ref
    ),
]
RefArgument = Annotated[
    str,
    typer.Argument(help="namespace/name[@version or alias], or sha256:...", metavar="REF", autocompletion=complete_ref),
]
SAMPLE_FORMS = (
    '.jsonl(.gz) of {"text"} or {"prompt", "answer"}, .txt (a passage a paragraph), a folder of these, or - for stdin.'
)
SampleOption = Annotated[Path, typer.Option("--sample", help=SAMPLE_FORMS)]


@dataclass(frozen=True)
class Remote:
    """The client of one run of a verb; with `json` the verb prints JSON."""

    client: SoupClient
    json: bool

    def answer(self, value: Any, *lines: str, note: str = "") -> None:
        """Print the result of the verb: `value` as JSON with --json, else the lines, and `note` on stderr."""
        answer(value, *lines, json=self.json, note=note)

    def follow(self, description: str, begun: Json) -> Json:
        """The result of a job, whose id is on stderr before the verb waits; any other answer is returned unchanged."""
        if begun["object"] == "job" and begun["state"] not in DONE:
            talk(f"{begun['id']} goes on when this command ends; `soup jobs cancel {begun['id']}` stops it.")
        with progress_bar(description) as report:
            return self.client.result(begun, report)

    def answer_rows(
        self,
        values: Sequence[Any],
        header: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        empty: str = "Nothing matches.",
    ) -> None:
        """Print a list: `values` as JSON with --json, else `rows` as a table, or `empty` on stderr without rows."""
        table = [columns(header, rows, within=data_width())] if rows else []
        self.answer({"object": "list", "data": values}, *table, note="" if rows else empty)


@dataclass(frozen=True)
class Address:
    """The options for the server's address and key."""

    SECTION: ClassVar[str] = "Server"
    url: Annotated[str | None, typer.Option(help="Address of the server (SOUP_URL).", metavar="URL")] = None
    key: Annotated[
        str | None,
        typer.Option(help="API key (SOUP_KEY; on this machine by default that of <data>/admin.key).", metavar="KEY"),
    ] = None

    def client(self, context: typer.Context) -> SoupClient:
        """A client of this server, made by the context's object if that is a function (in tests)."""
        make = context.obj if callable(context.obj) else connect
        client: SoupClient = make(self.url, self.key)
        return client


def connect(url: str | None, key: str | None, timeout: float | None = None) -> SoupClient:
    """A client configured by flags, the environment, and the key file of a server on this machine.

    Raises Unavailable for a proxy of the environment that httpx2 cannot use.
    """
    settings = settings_of(ClientSettings, url=url, key=key, timeout=timeout)
    try:
        return SoupClient(settings.url, settings.secret(), timeout=settings.timeout)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        problem = str(error).rstrip(".")
        raise Unavailable(f"The proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: {problem}.") from None


def verb(function: Callable[Concatenate[Remote, ...], None]) -> Callable[..., None]:
    """A command for typer that calls `function(remote, ...)`; --url, --key and --json join its options."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    json = typer.Option("--json", help="Print the server's answer as JSON.")
    context, address = keyword("context", typer.Context), keyword("address", Address)
    as_json = keyword("as_json", Annotated[bool, json], default=False)

    def run(**values: Any) -> None:
        server = arguments_of([address], values)["address"]
        with server.client(values["context"]) as client:
            function(Remote(client, values["as_json"]), **arguments_of(parameters, values))

    return as_command(run, [context, *parameters, address, as_json], like=function)
