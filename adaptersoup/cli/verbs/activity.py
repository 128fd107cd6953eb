"""`soup audit` and `usage`: the log of changes, and sums of requests and tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, ClassVar

import typer

from adaptersoup.cli.flags import moment
from adaptersoup.cli.output import as_json, talk, write
from adaptersoup.cli.remote import Remote, verb

MAX_SHOWN = 100
"""Rows of usage that are printed by default."""


@dataclass(frozen=True)
class AuditFilters:
    """The filters of a list of entries, as keyword arguments of `SoupClient.audit`."""

    SECTION: ClassVar[str] = "Filters"
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as adapter.retire, or a group, such as key.")
    ] = None
    subject: Annotated[str | None, typer.Option(help="Only changes of this name, id or digest.")] = None
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.")] = None
    key_id: Annotated[str | None, typer.Option("--by", help="Only this key, by its id.")] = None
    since: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="DATE", help="Only from this time on (UTC).")
    ] = None
    until: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="DATE", help="Only before this time (UTC).")
    ] = None


@verb
def audit(
    remote: Remote,
    filters: AuditFilters,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of entries; by default 50, with --lines all.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Print one entry per line as JSON, for an export.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print all entries as CSV.")] = False,
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
        if lines or limit is not None or remote.json:
            raise typer.BadParameter("--csv prints all entries as CSV: leave out --lines, --limit and --json.")
        write(remote.client.audit_csv(**asdict(filters)))
        return
    stream = remote.client.audit(limit=limit or (None if lines else 50), **asdict(filters))
    if lines:
        for entry in stream:
            as_json(entry, lines=True)
        return
    entries = list(stream)
    rows = [
        (str(e["at"])[:19].replace("T", " "), e["action"], e["subject"], e["key_id"], e["request_id"], e["detail"])
        for e in entries
    ]
    header = ("at", "action", "subject", "key", "request", "detail")
    remote.answer_rows(entries, header, rows)


class Group(StrEnum):
    """Columns by which sums are grouped."""

    DAY = "day"
    KEY = "key_id"
    NAMESPACE = "namespace"
    MODEL = "model"


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a day such as 2030-01-31.") from None


@dataclass(frozen=True)
class UsageFilters:
    """The filters of sums, as keyword arguments of `SoupClient.usage`."""

    SECTION: ClassVar[str] = "Filters"
    since: Annotated[str | None, typer.Option(parser=_day, metavar="DAY", help="Only from this day on (UTC).")] = None
    until: Annotated[str | None, typer.Option(parser=_day, metavar="DAY", help="Only before this day (UTC).")] = None
    key_id: Annotated[str | None, typer.Option("--of-key", metavar="ID", help="Only this key, by its id.")] = None
    namespace: Annotated[str | None, typer.Option(metavar="NS", help="Only models in this namespace.")] = None
    model: Annotated[str | None, typer.Option(help="Only this model: base/<id>, or namespace/name@version.")] = None


@verb
def usage(
    remote: Remote,
    filters: UsageFilters,
    by: Annotated[list[Group] | None, typer.Option(help="Column to group by; repeatable. By default all.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Maximum number of rows; by default {MAX_SHOWN}.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV.")] = False,
) -> None:
    """Sum requests and tokens, newest day first.

    \b
    Examples:
      soup usage --since 2026-01-01
      soup usage --by model --by day
      soup usage --namespace team --csv > usage.csv
    """
    groups = [group.value for group in by or ()]
    if csv:
        if limit is not None or remote.json:
            raise typer.BadParameter("--csv prints all rows as CSV: leave out --limit and --json.")
        write(remote.client.usage_csv(by=groups, **asdict(filters)))
        return
    sums = list(remote.client.usage(by=groups, limit=limit or MAX_SHOWN + 1, **asdict(filters)))
    if limit is None and len(sums) > MAX_SHOWN:
        talk(f"These are the first {MAX_SHOWN} rows: --limit prints more, --csv all.")
        sums = sums[:MAX_SHOWN]
    columns = [group.value for group in Group if not groups or group.value in groups]
    header = (*columns, "requests", "tokens_in", "tokens_out")
    remote.answer_rows(sums, header, [tuple(row[name] for name in header) for row in sums])
