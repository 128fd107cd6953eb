"""`soup usage`: requests and tokens, of the key itself, or for admins of their namespaces."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated

import typer

from service.cli.output import write
from service.cli.remote import Remote, verb


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
class Filters:
    """What is summed up, as `SoupClient.usage` takes it."""

    since: Annotated[str | None, typer.Option(parser=_day, metavar="DAY", help="Only from this day on (UTC).")] = None
    until: Annotated[str | None, typer.Option(parser=_day, metavar="DAY", help="Only before this day (UTC).")] = None
    key_id: Annotated[str | None, typer.Option("--of-key", metavar="ID", help="Only of this key.")] = None
    namespace: Annotated[str | None, typer.Option(metavar="NS", help="Only of models in this namespace.")] = None
    model: Annotated[str | None, typer.Option(help="Only of this model: base/<id>, or namespace/name@version.")] = None


@verb
def usage(
    remote: Remote,
    filters: Filters,
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
