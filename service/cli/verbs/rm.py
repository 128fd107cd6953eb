"""`soup rm`: retires adapters and soups, or brings them back."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.failures import Failures
from service.cli.remote import Remote, verb


@verb
def rm(
    remote: Remote,
    refs: Annotated[list[str], typer.Argument(help="Names; without @version all live versions.", metavar="REF")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Bring back what was retired; each REF with its @version.")
    ] = False,
) -> None:
    """Retire adapters or soups.

    They are no longer found, selected or served; soups made of them stay.

    \b
    Examples:
      soup rm team/law@1
      soup rm team/old team/older
      soup rm --undo team/law@1
    """
    changed, failed = [], Failures()
    for ref in refs:
        with failed.of(ref):
            changed += [remote.client.restore(ref)] if undo else remote.client.delete_adapter(ref)
    remote.answer({"object": "list", "data": changed}, *(row["ref"] for row in changed))
    failed.end()
