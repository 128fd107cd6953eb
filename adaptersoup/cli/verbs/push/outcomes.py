"""The outcomes of a push: as a table, as JSON, and as notes about one adapter."""

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
    """The outcome of pushing one source: the server's Adapter or the error, or neither if it was not sent."""

    source: Source
    state: State = "not sent"
    adapter: dict[str, Any] | None = None
    error: SoupError | None = None

    @property
    def ref(self) -> str:
        """The name, with the version once it is pushed."""
        return self.source.name if self.adapter is None else str(self.adapter["ref"])

    def as_json(self) -> dict[str, Any]:
        """The outcome as a JSON object; the server's Adapter is printed beside the list of these."""
        return {
            "path": str(self.source.path),
            "name": self.source.name,
            "state": self.state,
            "ref": None if self.adapter is None else self.ref,
            "error": None if self.error is None else as_dict(self.error),
        }


def print_summary(outcomes: Sequence[Outcome]) -> None:
    """Print a table of all outcomes; if stdout is not a terminal, the names there and the table on stderr."""
    rows = [(outcome.ref, outcome.state, _domain(outcome), _note(outcome)) for outcome in outcomes]
    table = columns(("adapter", "state", "domain", "note"), rows, within=table_width())
    if sys.stdout.isatty():
        data(table)
    else:
        for outcome in outcomes:
            if outcome.adapter is not None:
                data(outcome.ref)
        talk(table)
    counts = Counter(outcome.state for outcome in outcomes)
    talk(", ".join(f"{count} {state}" for state, count in counts.items()) + ".")
    if counts["not sent"]:
        talk("The same command again goes on where this ended.")


def notes(adapter: dict[str, Any]) -> list[str]:
    """The server's warnings about an adapter, and what it lacks to be used or selected."""
    texts = [str(warning) for warning in adapter.get("warnings") or ()]
    if (adapter.get("config") or {}).get("method") == "adamix":
        name = adapter["ref"].partition("@")[0]
        merge = name.removesuffix(BANK) if name.endswith(BANK) else f"{name}-merge"
        command = f"`soup cook --recipe {adapter['ref']} --name {merge}`"
        texts.append(f"a bank is only stored; {command} makes the merge to use.")
    elif adapter.get("sample_state") == "none":
        texts.append("no sample, so it can be used but not selected; push it again with --sample.")
    return texts


def _domain(outcome: Outcome) -> str | None:
    if outcome.adapter is not None:
        return str(outcome.adapter["domain"])
    source = outcome.source
    return source.additions.domain or (None if source.directory is None else source.directory.domain)


def _note(outcome: Outcome) -> str:
    if outcome.error is not None:
        return " ".join(map(one_line, dict.fromkeys([outcome.error.message, *outcome.error.problems])))
    return "" if outcome.adapter is None else " ".join(notes(outcome.adapter))
