"""`soup rm`, `purge` and `collect`: retire versions, remove them for good, and remove expired data."""

from __future__ import annotations

from typing import Annotated

import typer

from adaptersoup.cli.adapter_filters import Confirmation, Matching, check_names_or_filters, matching_adapters
from adaptersoup.cli.failures import Failures
from adaptersoup.cli.output import talk
from adaptersoup.cli.remote import Remote, complete_ref, verb


@verb
def rm(
    remote: Remote,
    refs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names; without @version all live versions.", metavar="REF...", autocompletion=complete_ref
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Restore retired versions; each REF with its @version.")] = False,
    *,
    matching: Matching,
    confirmation: Confirmation,
) -> None:
    """Retire adapters or soups.

    Retired versions are not listed, selected or served. Soups made from them stay, and --undo restores them. With
    filters instead of names, all versions that `soup ls` lists for them are retired. On a terminal the command asks
    first.

    \b
    Examples:
      soup rm team/law@1
      soup rm team/old team/older --yes
      soup rm --tag draft --namespace team --dry-run
      soup rm --undo team/law@1
    """
    check_names_or_filters(refs or (), matching)
    if undo and not refs:
        raise typer.BadParameter("--undo needs names with their @version, because retired versions are not listed.")
    if not refs:
        rows = matching_adapters(remote.client, matching)
        if not rows:
            remote.answer({"object": "list", "data": []}, note="Nothing matches.")
            return
        refs = [str(row["ref"]) for row in rows]
        if not confirmation.confirm("retired", rows):
            remote.answer({"object": "list", "data": rows}, *refs)
            return
    elif confirmation.dry_run:
        raise typer.BadParameter("--dry-run lists what filters match: give filters, or drop it.")
    elif not undo:
        confirmation.confirm_on_terminal(f"Retire {', '.join(refs)}?")
    changed, failed = [], Failures()
    for ref in refs:
        with failed.of(ref):
            changed += [remote.client.restore(ref)] if undo else remote.client.delete_adapter(ref)
    remote.answer({"object": "list", "data": changed}, *(row["ref"] for row in changed))
    failed.end()


@verb
def purge(
    remote: Remote,
    refs: Annotated[list[str], typer.Argument(help="Versions, each with its @version.", metavar="REF")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove versions for good, with weights, evidence and the text of their samples.

    Needs a key with scope admin. A purge cannot be undone; `soup rm` only retires. Soups made from the versions are
    still served, but cannot be rebuilt. Existing backups keep the data.

    \b
    Examples:
      soup purge team/law@1
      soup purge team/old@1 team/old@2 --yes
    """
    if not yes:
        typer.confirm(f"Remove {', '.join(refs)} for good?", abort=True, err=True)
    purges, failed = [], Failures()
    for ref in refs:
        with failed.of(ref):
            purged = remote.client.purge(ref)
            purges.append(purged)
            talk(f"{ref}: files removed: {purged['blobs']}, of {purged['bytes']} bytes.")
            for soup in purged["not_rebuildable"]:
                talk(f"{soup} cannot be rebuilt any more.")
            for soup in purged["tuned_on_sample"]:
                talk(f"{soup} has learnt from its sample.")
            if purged["elsewhere"]:
                talk(f"{purged['elsewhere']} more soups of it are in namespaces that this key does not see.")
    remote.answer({"object": "list", "data": purges}, *(purged["adapter"]["ref"] for purged in purges))
    failed.end()


COUNTS = {
    "retired": "unnamed soups retired",
    "soups": "retired unnamed soups removed",
    "selectors": "selectors removed",
    "blobs": "uploads removed",
    "files": "files removed",
    "jobs": "old jobs removed",
    "usage": "old rows of usage removed",
    "audit": "old entries of the audit removed",
}
"""Words for the counts of the answer, by their names."""


@verb
def collect(
    remote: Remote,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the data without removing it.")] = False,
) -> None:
    """Remove expired data, as the server does every hour.

    The settings SOUP_COLLECT_DAYS, SOUP_UNNAMED_SOUP_DAYS, SOUP_JOB_DAYS, SOUP_USAGE_DAYS, SOUP_AUDIT_DAYS and those of
    namespaces say what expires. Needs a key with scope admin for all namespaces. Prints the removed soups; storing or
    cooking the same again restores them.

    \b
    Examples:
      soup collect --dry-run
      soup collect
    """
    collection = remote.client.collect(dry_run=dry_run)
    counts = [f"{collection[name]} {words}" for name, words in COUNTS.items() if collection.get(name)]
    talk(f"{'Would go' if dry_run else 'Done'}: {', '.join(counts) or 'nothing is due'}.")
    remote.answer(collection, *collection["expired"], *collection["removed"])
