"""`soup audit`: who did what. Needs a key with scope admin."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated

import typer

from service.cli.flags import moment
from service.cli.output import as_json, write
from service.cli.remote import Remote, verb


@dataclass(frozen=True)
class Filters:
    """Which entries are listed, as `SoupClient.audit` takes it."""

    action: Annotated[
        str | None, typer.Option(help="Only this action (adapter.retire), or all that begin so (key.).")
    ] = None
    subject: Annotated[str | None, typer.Option(help="Only what was done to this: a name, an id, a digest.")] = None
    namespace: Annotated[str | None, typer.Option(help="Only in this namespace.")] = None
    key_id: Annotated[str | None, typer.Option("--by", help="Only by this key, as `soup keys ls` shows it.")] = None
    since: Annotated[datetime | None, typer.Option(parser=moment, metavar="DATE", help="Only from then on (UTC).")] = (
        None
    )
    until: Annotated[datetime | None, typer.Option(parser=moment, metavar="DATE", help="Only before (UTC).")] = None


@verb
def audit(
    remote: Remote,
    filters: Filters,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; by default 50, with --lines all.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="One entry as JSON a line, as they come: an export.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="All entries as CSV, for a spreadsheet.")] = False,
) -> None:
    """List who did what, newest first.

    \b
    Examples:
      soup audit
      soup audit --action key. --since 2026-01-31
      soup audit --namespace team --lines > audit.jsonl
      soup audit --since 2026-01-01 --csv > audit.csv
    """
    if csv:
        if lines or limit is not None:
            raise typer.BadParameter("--csv is all of it: leave out --lines and --limit.")
        write(remote.client.audit_csv(**asdict(filters)))
        return
    found = remote.client.audit(limit=limit or (None if lines else 50), **asdict(filters))
    if lines:
        for entry in found:
            as_json(entry, lines=True)
        return
    entries = list(found)
    rows = [
        (str(e["at"])[:19].replace("T", " "), e["action"], e["subject"], e["key_id"], e["request_id"], e["detail"])
        for e in entries
    ]
    header = ("at", "action", "subject", "key", "request", "detail")
    remote.answer_rows(entries, header, rows)
