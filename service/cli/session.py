"""What every verb that talks to a server has: --url, --key and --json, and a client that is closed afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate

import typer
from pydantic import ValidationError

from service.cli.failures import bad_setting
from service.client.client import SoupClient

Connect = Callable[[str | None, str | None], SoupClient]

UrlOption = Annotated[str | None, typer.Option("--url", help="Address of the server (SOUP_URL).", metavar="URL")]
KeyOption = Annotated[
    str | None, typer.Option("--key", help="Key to send (SOUP_KEY; else <data>/admin.key).", metavar="KEY")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON.")]
SampleOption = Annotated[
    Path, typer.Option("--sample", help='.jsonl(.gz) of {"text"}, .txt (a passage a paragraph), or - for stdin.')
]


@dataclass(frozen=True)
class Session:
    """The client of one run of a verb, and whether it answers in JSON."""

    client: SoupClient
    json: bool


def connect(url: str | None, key: str | None) -> SoupClient:
    """A client by flags, environment and the key file of a server on this machine."""
    from service.settings import ClientSettings

    try:
        settings = ClientSettings(**{k: v for k, v in (("url", url), ("key", key)) if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        raise bad_setting(error) from None
    return SoupClient(settings.url, settings.secret(), timeout=settings.timeout)


def verb(function: Callable[Concatenate[Session, ...], None]) -> Callable[..., None]:
    """A verb `function(session, ...)` as a command function: the session's three options join its own."""

    def command(*, ctx: typer.Context, url: str | None, key: str | None, as_json: bool, **own: Any) -> None:
        make: Connect = ctx.obj if callable(ctx.obj) else connect
        with make(url, key) as client:
            function(Session(client, as_json), **own)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", keyword, annotation=typer.Context),
        *[p.replace(kind=keyword) for p in list(inspect.signature(function, eval_str=True).parameters.values())[1:]],
        inspect.Parameter("url", keyword, default=None, annotation=UrlOption),
        inspect.Parameter("key", keyword, default=None, annotation=KeyOption),
        inspect.Parameter("as_json", keyword, default=False, annotation=JsonOption),
    ]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
