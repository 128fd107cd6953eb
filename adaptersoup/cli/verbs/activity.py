"""`soup audit` and `usage`: who did what, and how many requests and tokens that took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated

import typer

from adaptersoup.cli.flags import moment
from adaptersoup.cli.output import as_json, write
from adaptersoup.cli.remote import Remote, verb


@dataclass(frozen=True)
class AuditFilters:
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
    filters: AuditFilters,
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


class Group(StrEnum):
    """What sums are told apart by."""

    DAY = "day"
    KEY = "key_id"
    NAMESPACE = "namespace"
    MODEL = "model"


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no day (2030-01-31).") from None


@dataclass(frozen=True)
class UsageFilters:
    """What is summed up, as `SoupClient.usage` takes it."""

    since: Annotated[str | None, typer.Option(parser=_day, metavar="DAY", help="Only from this day on (UTC).")] = None
    until: Annotated[str | None, typer.Option(parser=_day, metavar="DAY", help="Only before this day (UTC).")] = None
    key_id: Annotated[str | None, typer.Option("--of-key", metavar="ID", help="Only of this key.")] = None
    namespace: Annotated[str | None, typer.Option(metavar="NS", help="Only of models in this namespace.")] = None
    model: Annotated[str | None, typer.Option(help="Only of this model: base/<id>, or namespace/name@version.")] = None


@verb
def usage(
    remote: Remote,
    filters: UsageFilters,
    by: Annotated[list[Group] | None, typer.Option(help="What to tell apart; may be repeated. By default all.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many rows; by default 100.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="All rows as CSV: an export.")] = False,
) -> None:
    """Sum up requests and tokens, last day first.

    \b
    Examples:
      soup usage --since 2026-01-01
      soup usage --by model --by day
      soup usage --namespace team --csv > usage.csv
    """
    groups = [one.value for one in by or ()]
    if csv:
        write(remote.client.usage_csv(by=groups, **asdict(filters)))
        return
    found = list(remote.client.usage(by=groups, limit=limit or 100, **asdict(filters)))
    shown = [group.value for group in Group if not groups or group.value in groups]
    header = (*shown, "requests", "tokens_in", "tokens_out")
    rows = [tuple(row[name] for name in header) for row in found]
    remote.answer_rows(found, header, rows)
