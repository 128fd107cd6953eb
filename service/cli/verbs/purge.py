"""`soup purge`: removes versions for good, with the text of their samples."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.failures import Failures
from service.cli.output import talk
from service.cli.remote import Remote, verb


@verb
def purge(
    remote: Remote,
    refs: Annotated[list[str], typer.Argument(help="Versions, each with its @version.", metavar="REF")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove versions for good, with weights, evidence and the text of their samples.

    Needs a key with scope admin. There is no way back: 'soup rm' only retires. Soups made of them are served as before,
    but cannot be rebuilt. Backups are yours to remove.

    \b
    Examples:
      soup purge team/law@1
      soup purge team/old@1 team/old@2 --yes
    """
    if not yes:
        typer.confirm(f"Remove {', '.join(refs)} for good?", abort=True, err=True)
    done, failed = [], Failures()
    for ref in refs:
        with failed.of(ref):
            purged = remote.client.purge(ref)
            done.append(purged)
            talk(f"{ref}: files removed: {purged['blobs']}, of {purged['bytes']} bytes.")
            for said, what in (
                ("not_rebuildable", "cannot be rebuilt any more"), ("tuned_on_sample", "has learnt from its sample"),
            ):  # fmt: skip
                for soup in purged[said]:
                    talk(f"{soup} {what}.")
            if purged["elsewhere"]:
                talk(f"{purged['elsewhere']} more soups of it are in namespaces that this key does not see.")
    versions = [one["adapter"]["ref"] for one in done]
    remote.answer({"object": "list", "data": done}, *versions)
    failed.end()
