"""Which adapters a verb works on: by filters as lists take them, or by name, asked about before anything is changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from adaptersoup.cli.flags import base_id
from adaptersoup.cli.output import talk
from adaptersoup.client import SoupClient
from adaptersoup.tables import columns, table_width

Json = dict[str, Any]
_FLAGS = {"q": "--matching", "base_model": "--base"}
"""Filters that are not called as their flags are."""


@dataclass(frozen=True)
class _Filters:
    """What lists of adapters are filtered by, whatever the verb; each says by itself how its words are given."""

    q: str | None = None
    kind: Annotated[Literal["adapter", "soup"] | None, typer.Option("--kind", help="Only these.")] = None
    domain: Annotated[str | None, typer.Option(help="Only of this domain.")] = None
    owner: Annotated[str | None, typer.Option(help="Only of this owner: who answers for them.")] = None
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; may be repeated: with all of them.")] = None
    name: Annotated[str | None, typer.Option(help="Only of this name: law of any namespace, or team/law.")] = None
    namespace: Annotated[str | None, typer.Option(help="Only of this namespace.")] = None
    base_model: Annotated[str | None, typer.Option("--base", callback=base_id, help="Only of this base model.")] = None
    method: Annotated[str | None, typer.Option(help="Only of this method.")] = None


@dataclass(frozen=True)
class Filters(_Filters):
    """Which adapters are listed, as `SoupClient.adapters` takes it."""

    q: Annotated[
        str | None, typer.Argument(help="Words, or their beginnings, of name, domain, tags or card.", metavar="[TEXT]")
    ] = None
    tuned_on: Annotated[
        str | None,
        typer.Option(help="Only what has learnt from this sample, through its ingredients too.", metavar="DIGEST"),
    ] = None


@dataclass(frozen=True)
class Matching(_Filters):
    """Filters for a verb that changes what they find; without any of them it works on what is named."""

    q: Annotated[
        str | None,
        typer.Option("--matching", help="Only with these words, as `soup ls` looks for them.", metavar="TEXT"),
    ] = None

    def asked(self) -> Json | None:
        """The filters as `SoupClient.adapters` takes them, None where there are none.

        Raises a usage error for one that is empty: a script's variable that is not set must not stand for everything.
        """
        found = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        empty = [name for name, value in found.items() if not all(map(str.strip, _each(value)))]
        if empty:
            raise typer.BadParameter(f"{_FLAGS.get(empty[0], '--' + empty[0])} is empty: leave it out, or say which.")
        return found or None


@dataclass(frozen=True)
class Asking:
    """Whether what is found is changed."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be changed, and change nothing.")] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False

    def agreed(self, what: str, rows: Sequence[Json]) -> bool:
        """Whether to go on with these, which are shown; without --yes a terminal is asked, else it is a usage error."""
        shown = [
            (row["ref"], row["kind"], row["domain"], (row.get("card") or {}).get("tags") or (), row.get("owner"))
            for row in rows
        ]
        talk(columns(("name", "kind", "domain", "tags", "owner"), shown, within=table_width()))
        if self.dry_run:
            talk(f"{_counted(rows)} would be {what}.")
            return False
        if not self.yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter(f"Nobody can be asked here: say --yes to have {_counted(rows)} {what}.")
            typer.confirm(f"{_counted(rows)} will be {what}. Go on?", abort=True, err=True)
        return True

    def confirm_on_a_terminal(self, question: str) -> None:
        """Ask about names that somebody typed, where somebody can be asked; ends the command on no."""
        if not self.yes and sys.stdin.isatty():
            typer.confirm(question, abort=True, err=True)


def _each(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _counted(rows: Sequence[Json]) -> str:
    return f"{len(rows)} version{'' if len(rows) == 1 else 's'}"


def found_by(client: SoupClient, matching: Matching) -> list[Json]:
    """The live versions that filters find."""
    return list(client.adapters(**(matching.asked() or {})))


def check_one_way(refs: Sequence[str], matching: Matching) -> None:
    """Raises a usage error where names and filters are given, or neither."""
    if bool(refs) == (matching.asked() is not None):
        raise typer.BadParameter("Give names, or filters that find them (--tag, --namespace ...), and not both.")
