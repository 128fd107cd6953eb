"""`soup rm`: retires adapters and soups."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.errors import SoupError
from service.cli.failures import explain, worst_code
from service.cli.output import talk
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
    gone, failed = [], []
    for ref in refs:
        try:
            gone += remote.client.delete_adapter(ref)
        except SoupError as error:
            talk(f"{ref}: {explain(error)}")
            failed.append(error)
    remote.answer({"object": "list", "data": gone}, *(row["ref"] for row in gone))
    if failed:
        raise typer.Exit(worst_code(failed))
