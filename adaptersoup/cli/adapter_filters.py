"""The adapters that a verb works on, by filters or by name, and the confirmation before it changes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import typer

from adaptersoup.cli.flags import base_id
from adaptersoup.cli.output import talk
from adaptersoup.client import SoupClient
from adaptersoup.tables import columns, table_width

Json = dict[str, Any]
_FLAGS = {"q": "--matching", "base_model": "--base"}
"""Flags of the filters whose names differ from their flags'."""


@dataclass(frozen=True)
class _Filters:
    """The filters of lists of adapters that all verbs share; each subclass adds its own option `q`."""

    SECTION: ClassVar[str] = "Filters"
    kind: Annotated[Literal["adapter", "soup"] | None, typer.Option("--kind", help="Only adapters, or only soups.")] = (
        None
    )
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None
    owner: Annotated[str | None, typer.Option(help="Only this owner.")] = None
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; repeat to require several.")] = None
    name: Annotated[str | None, typer.Option(help="Only this name: law in any namespace, or team/law.")] = None
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.")] = None
    base_model: Annotated[str | None, typer.Option("--base", callback=base_id, help="Only this base model.")] = None
    method: Annotated[str | None, typer.Option(help="Only this method.")] = None
    tuned_on: Annotated[
        str | None,
        typer.Option(
            help="Only models that learnt from this sample, also through their ingredients.", metavar="DIGEST"
        ),
    ] = None


@dataclass(frozen=True)
class Filters(_Filters):
    """The filters of a list, as keyword arguments of `SoupClient.adapters`."""

    q: Annotated[
        str | None,
        typer.Argument(help="Words, or beginnings of words, in name, domain, tags or card.", metavar="[TEXT]"),
    ] = None


@dataclass(frozen=True)
class Matching(_Filters):
    """The filters of a verb that changes all matching adapters; without any, it works on named ones."""

    q: Annotated[
        str | None,
        typer.Option("--matching", help="Only with these words in name, domain, tags or card.", metavar="TEXT"),
    ] = None

    def filters(self) -> Json | None:
        """The filters as keyword arguments of `SoupClient.adapters`, None if there are none.

        Raises a usage error for an empty one: an unset variable of a script must not match everything.
        """
        filters = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        for name, value in filters.items():
            if not all(text.strip() for text in ([value] if isinstance(value, str) else value)):
                flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
                raise typer.BadParameter(f"{flag} is empty: leave it out, or give a value.")
        return filters or None


@dataclass(frozen=True)
class Confirmation:
    """The options that confirm a change of several adapters, or only list them."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the changes without making them.")] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False

    def confirm(self, change: str, rows: Sequence[Json]) -> bool:
        """List the adapters and ask on the terminal; return False for a dry run.

        `change` is a participle, such as "retired". Without --yes and a terminal raises a usage error; ends the command
        if the user declines.
        """
        cells = [
            (row["ref"], row["kind"], row["domain"], (row.get("card") or {}).get("tags") or (), row.get("owner"))
            for row in rows
        ]
        talk(columns(("name", "kind", "domain", "tags", "owner"), cells, within=table_width()))
        count = f"{len(rows)} version{'' if len(rows) == 1 else 's'}"
        if self.dry_run:
            talk(f"{count} would be {change}.")
            return False
        if not self.yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter(f"There is no terminal to ask on: add --yes to have {count} {change}.")
            typer.confirm(f"{count} will be {change}. Go on?", abort=True, err=True)
        return True

    def confirm_on_terminal(self, question: str) -> None:
        """Ask about adapters named on the command line, if stdin is a terminal; ends the command on no."""
        if not self.yes and sys.stdin.isatty():
            typer.confirm(question, abort=True, err=True)


def matching_adapters(client: SoupClient, matching: Matching) -> list[Json]:
    """The live versions that match the filters; raises ValueError without any, which every adapter would match."""
    filters = matching.filters()
    if filters is None:
        raise ValueError("without a filter, every adapter would match")
    return list(client.adapters(**filters))


def check_names_or_filters(refs: Sequence[str], matching: Matching) -> None:
    """Raise a usage error unless there are either names or filters."""
    if bool(refs) == (matching.filters() is not None):
        raise typer.BadParameter("Give either names or filters such as --tag and --namespace, not both.")
