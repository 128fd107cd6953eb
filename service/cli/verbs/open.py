"""`soup open`: the page of a model in the browser."""

from __future__ import annotations

import sys
import webbrowser
from typing import Annotated

import typer

from registry.errors import InvalidParameter
from registry.names import BaseRef, parse_ref
from service.cli.remote import Remote, verb
from service.client.answers import part


@verb
def open(
    remote: Remote,
    ref: Annotated[
        str | None,
        typer.Argument(help="namespace/name[@version or alias], or sha256:...; by default all.", metavar="[REF]"),
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the address and open nothing.")] = False,
) -> None:
    """Open the page of a model in the browser.

    Its address is printed; where the output is no terminal, nothing more is done.

    \b
    Examples:
      soup open team/law
      soup open team/law@2 --print
      soup open
    """
    address = f"{remote.client.base_url}/models"
    if ref is not None:
        if isinstance(parse_ref(ref), BaseRef):
            raise InvalidParameter(f"{ref} is a base model; pages are of adapters and soups.", param="ref")
        row = remote.client.adapter(ref)
        address += f"/{part(row['namespace'])}/{part(row['name'])}@{row['version']}"
    remote.answer({"object": "page", "url": address}, address)
    if not (only_print or remote.json) and sys.stdout.isatty():
        webbrowser.open(address)
