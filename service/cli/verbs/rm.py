"""`soup rm`: retires adapters and soups."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.failures import Failures
from service.cli.remote import Remote, verb


@verb
def rm(
    remote: Remote,
    refs: Annotated[list[str], typer.Argument(help="Names; without @version all live versions.", metavar="REF")],
) -> None:
    """Retire adapters or soups.

    They are no longer found, selected or served; soups made of them stay.

    \b
    Examples:
      soup rm team/law@1
      soup rm team/old team/older
    """
    gone, failed = [], Failures()
    for ref in refs:
        with failed.of(ref):
            gone += remote.client.delete_adapter(ref)
    remote.answer({"object": "list", "data": gone}, *(row["ref"] for row in gone))
    failed.end()
