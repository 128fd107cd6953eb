"""What became of each of the adapters that were pushed, as a table, as JSON, and as talk of one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from adaptersoup.cli.output import data, talk
from adaptersoup.cli.verbs.push.sources import Source
from adaptersoup.client.transfer import PushStatus
from adaptersoup.tables import columns, one_line, table_width
from registry.errors import SoupError, as_dict
from training.spec import BANK

State = PushStatus | Literal["refused", "not sent"]


@dataclass
class Outcome:
    """What became of one source: the server's Adapter, or the error, or neither where the command was ended before."""

    source: Source
    state: State = "not sent"
    adapter: dict[str, Any] | None = None
    error: SoupError | None = None

    @property
    def ref(self) -> str:
        """Name and version, once it has one."""
        return self.source.name if self.adapter is None else str(self.adapter["ref"])

    def as_json(self) -> dict[str, Any]:
        """For scripts; the Adapter objects stand beside the list of these."""
        ref = None if self.adapter is None else self.ref
        error = None if self.error is None else as_dict(self.error)
        return {
            "path": str(self.source.path),
            "name": self.source.name,
            "state": self.state,
            "ref": ref,
            "error": error,
        }


def summary(outcomes: Sequence[Outcome]) -> None:
    """A table of all on a terminal; for a program the names on stdout, and the table on stderr."""
    rows = [(one.ref, one.state, _domain(one), _note(one)) for one in outcomes]
    table = columns(("adapter", "state", "domain", "note"), rows, within=table_width())
    if sys.stdout.isatty():
        data(table)
    else:
        for one in outcomes:
            if one.adapter is not None:
                data(one.ref)
        talk(table)
    counted = Counter(one.state for one in outcomes)
    talk(", ".join(f"{number} {state}" for state, number in counted.items()) + ".")
    if counted["not sent"]:
        talk("The same command again goes on where this ended.")


def comment(adapter: dict[str, Any]) -> None:
    """Talk about one adapter that was pushed."""
    for note in notes(adapter):
        talk(f"{adapter['ref']}: {note}")


def notes(adapter: dict[str, Any]) -> list[str]:
    """The server's warnings, and what the adapter lacks."""
    found = [str(warning) for warning in adapter.get("warnings") or ()]
    if (adapter.get("config") or {}).get("method") == "adamix":
        name = adapter["ref"].partition("@")[0]
        merge = name.removesuffix(BANK) if name.endswith(BANK) else f"{name}-merge"
        made = f"`soup cook --recipe {adapter['ref']} --name {merge}`"
        found.append(f"a bank is only stored; {made} makes the merge to use.")
    elif adapter.get("sample_state") == "none":
        found.append("no sample, so it can be used but not selected; push it again with --sample.")
    return found


def _domain(one: Outcome) -> str | None:
    if one.adapter is not None:
        return str(one.adapter["domain"])
    return one.source.more.domain or (None if one.source.read is None else one.source.read.domain)


def _note(one: Outcome) -> str:
    if one.error is not None:
        return " ".join(one_line(said) for said in dict.fromkeys([one.error.message, *one.error.problems]))
    return "" if one.adapter is None else " ".join(notes(one.adapter))
