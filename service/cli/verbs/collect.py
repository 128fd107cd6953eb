"""`soup collect`: what is due to be removed goes now, not within the hour."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.output import talk
from service.cli.remote import Remote, verb

SAID = {
    "retired": "unnamed soups retired",
    "soups": "retired unnamed soups removed",
    "selectors": "selectors removed",
    "blobs": "uploads removed",
    "files": "files removed",
    "jobs": "old jobs removed",
    "usage": "old rows of usage removed",
    "audit": "old entries of the audit removed",
}
"""By count of the answer: what was counted."""


@verb
def collect(
    remote: Remote,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove what is due, as the server does every hour.

    What is due is up to its settings (SOUP_COLLECT_DAYS, SOUP_UNNAMED_SOUP_DAYS, SOUP_JOB_DAYS, SOUP_USAGE_DAYS,
    SOUP_AUDIT_DAYS) and those of namespaces. Needs a key with scope admin and all namespaces. Prints the soups that
    went; storing or cooking the same again brings them back.

    \b
    Examples:
      soup collect --dry-run
      soup collect
    """
    found = remote.client.collect(dry_run=dry_run)
    counts = [f"{found[name]} {what}" for name, what in SAID.items() if found.get(name)]
    talk(f"{'Would go' if dry_run else 'Done'}: {', '.join(counts) or 'nothing is due'}.")
    remote.answer(found, *found["expired"], *found["removed"])
