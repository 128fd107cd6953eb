"""`soup rm`: retires adapters and soups, or brings them back."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.adapter_filters import Asking, Matching, check_one_way, found_by
from service.cli.failures import Failures
from service.cli.remote import Remote, complete_ref, verb


@verb
def rm(
    remote: Remote,
    refs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names; without @version all live versions.", metavar="REF...", autocompletion=complete_ref
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Bring back what was retired; each REF with its @version.")
    ] = False,
    *,
    matching: Matching,
    asking: Asking,
) -> None:
    """Retire adapters or soups.

    They are no longer found, selected or served; soups made of them stay, and --undo brings them back. On a terminal it
    asks before. With filters in the place of names all that `soup ls` finds by them, once somebody has agreed.

    \b
    Examples:
      soup rm team/law@1
      soup rm team/old team/older --yes
      soup rm --tag draft --namespace team --dry-run
      soup rm --undo team/law@1
    """
    check_one_way(refs or (), matching)
    if undo and not refs:
        raise typer.BadParameter("--undo takes names with their @version: what is retired is in no list.")
    if not refs:
        rows = found_by(remote.client, matching)
        if not rows:
            remote.answer({"object": "list", "data": []}, said="Nothing matches.")
            return
        refs = [str(row["ref"]) for row in rows]
        if not asking.agreed("retired", rows):
            remote.answer({"object": "list", "data": rows}, *refs)
            return
    elif asking.dry_run:
        raise typer.BadParameter("--dry-run says what filters find; names are what they are.")
    elif not undo:
        asking.confirm_on_a_terminal(f"Retire {', '.join(refs)}?")
    changed, failed = [], Failures()
    for ref in refs:
        with failed.of(ref):
            changed += [remote.client.restore(ref)] if undo else remote.client.delete_adapter(ref)
    remote.answer({"object": "list", "data": changed}, *(row["ref"] for row in changed))
    failed.end()
