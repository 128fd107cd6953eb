"""From cells to the table: perplexities, differences, averages that say which kind they are. Pure functions.

The base model stands in every comparison; the oracle, the best single adapter on the test text itself, is no method
but the mark that choosing one adapter could reach at best.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.cells import Cell
from demo.results import Figure
from registry.uncertainty import Difference

CONTROL = "control"
"""The name of the control's row."""
TUNED = "effort tune"
"""That of the soups which were trained on their samples."""


@dataclass(frozen=True)
class Entry:
    """One method on one domain; `said` is what its answer was made of."""

    cell: Cell
    model: str
    said: str = ""
    abstained: bool = False


@dataclass(frozen=True)
class Row:
    """One method over all domains."""

    name: str
    entries: Mapping[str, Entry]

    @property
    def key(self) -> str:
        """The name as part of a figure's name."""
        return re.sub("[^a-z0-9]+", "_", self.name.lower()).strip("_")

    def arithmetic(self) -> float:
        """The arithmetic mean of the domains' perplexities."""
        return math.fsum(entry.cell.perplexity for entry in self.entries.values()) / len(self.entries)

    def bits_per_byte(self) -> float:
        """The arithmetic mean of the domains' bits per byte."""
        return math.fsum(entry.cell.bits_per_byte for entry in self.entries.values()) / len(self.entries)

    def geometric(self) -> float:
        """The geometric mean of the domains' perplexities."""
        return math.exp(math.fsum(entry.cell.mean_nll for entry in self.entries.values()) / len(self.entries))


@dataclass(frozen=True)
class Table:
    """Every row, the base's first; `singles` has every adapter's cell by domain and adapter."""

    rows: Sequence[Row]
    singles: Mapping[str, Mapping[str, Cell]]

    @property
    def base(self) -> Row:
        """The base model's row."""
        return self.rows[0]

    @property
    def domains(self) -> list[str]:
        """The novel domains."""
        return list(self.base.entries)

    def difference(self, row: Row, domain: str) -> Difference:
        """A row's mean NLL against the base on a domain."""
        return row.entries[domain].cell.against(self.base.entries[domain].cell)

    @property
    def control(self) -> Row | None:
        """The row of the adapter trained on text of no domain, if there is one."""
        return next((row for row in self.rows if row.name == CONTROL), None)

    def winners(self, domain: str, over: Row | None = None) -> tuple[int, int]:
        """How many single adapters have a lower NLL than `over` (the base), and how many by two standard errors."""
        beaten = (over or self.base).entries[domain].cell
        found = [cell.against(beaten) for cell in self.singles[domain].values()]
        return sum(d.difference < 0 for d in found), sum(d.difference < -2 * d.standard_error for d in found)

    def distinct(self) -> tuple[list[Row], dict[str, str]]:
        """Rows without those that repeat a later one in every domain, and which those repeat: name -> name.

        The base model and the control always stand, and so does the last row, the service's answer.
        """
        kept: list[Row] = []
        same: dict[str, str] = {}
        for row in reversed(self.rows):
            twin = next((k for k in kept if _cells(k) == _cells(row)), None)
            if twin is None or row in (self.base, self.control):
                kept.insert(0, row)
            else:
                same[row.name] = twin.name
        return kept, same


def _cells(row: Row) -> dict[str, Cell]:
    return {domain: entry.cell for domain, entry in row.entries.items()}


def change(difference: float) -> float:
    """The change of perplexity, in per cent, that a difference of mean NLL makes."""
    return 100 * math.expm1(difference)


def oracle(singles: Mapping[str, Mapping[str, Cell]], refs: Mapping[str, str]) -> Row:
    """The best single adapter of each domain, chosen on the test text."""
    entries = {}
    for domain, cells in singles.items():
        name = min(cells, key=lambda name: cells[name].mean_nll)
        entries[domain] = Entry(cells[name], refs[name], said=name)
    return Row("oracle: best single adapter", entries)


# --- as text ---------------------------------------------------------------------------------------------


def text(table: Table, *, width: int = 100) -> str:
    """The table for people: blocks of domains as wide as the terminal, then averages, then what was taken."""
    rows, same = table.distinct()
    label = max(len(row.name) for row in rows)
    across = max(1, (width - label) // (CELL + 2))
    blocks = [table.domains[i : i + across] for i in range(0, len(table.domains), across)]
    parts = [_block(table, rows, domains, label) for domains in blocks] + [_averages(table, rows, label)]
    if same:
        parts.append("\n".join(f"{name}: in every domain the same as {twin}" for name, twin in same.items()))
    parts += [_beating(table)] if table.singles else []
    whole = "\n\n".join([*parts, _answers(table, rows, width)])
    return "\n".join(line.rstrip() for line in whole.split("\n"))


CELL = 20


def _block(table: Table, rows: Sequence[Row], domains: Sequence[str], label: int) -> str:
    lines = ["".ljust(label) + "".join(f"  {domain[:CELL]:>{CELL}}" for domain in domains)]
    lines += [row.name.ljust(label) + "".join(f"  {_shown(table, row, d):>{CELL}}" for d in domains) for row in rows]
    return "\n".join(lines)


def _shown(table: Table, row: Row, domain: str) -> str:
    """Perplexity, and its change against the base in per cent with the standard error."""
    entry = row.entries[domain]
    if row is table.base:
        return f"{entry.cell.perplexity:.2f}{'':13}"
    if entry.abstained:
        return f"{entry.cell.perplexity:.2f}   = the base"
    found = table.difference(row, domain)
    error = 100 * math.exp(found.difference) * found.standard_error
    return f"{entry.cell.perplexity:.2f} {change(found.difference):+5.1f}±{error:4.1f} %"


def _averages(table: Table, rows: Sequence[Row], label: int) -> str:
    control = table.control
    head = "perplexity over all domains".ljust(label) + "  arithmetic  geometric  bits/byte  to the base"
    lines = [head + ("  to the control" if control else "")]
    for row in rows:
        said = f"{row.name.ljust(max(label, 27))}  {row.arithmetic():10.2f}  {row.geometric():9.2f}"
        said += f"  {row.bits_per_byte():9.3f}"
        if row is not table.base:
            said += f"  {change(_over(row, table.base)):+9.1f} %"
        if control and row not in (table.base, control):
            said += f"  {change(_over(row, control)):+12.1f} %"
        lines.append(said)
    return "\n".join(lines)


def _over(row: Row, other: Row) -> float:
    """The difference of the logs of two rows' geometric means."""
    return math.log(row.geometric() / other.geometric())


def sentence(table: Table, *, answer: Row, seconds: float) -> str:
    """What happened, in one sentence: the geometric means of base, control, the service's answer and tuned soups.

    `answer` wins a domain where its perplexity there is below that of the base and of the control.
    """
    whose = answered([(entry.said, entry.abstained) for entry in answer.entries.values()])
    beside = [row for row in (table.base, table.control) if row is not None]
    won = sum(
        all(answer.entries[d].cell.mean_nll < row.entries[d].cell.mean_nll for row in beside) for d in table.domains
    )
    count = len(table.domains)
    means = ", ".join(f"{name} {row.geometric():.1f}" for name, row in zip(("base", "control"), beside, strict=False))
    tuned = next((row for row in table.rows if row.name == TUNED), None)
    also = "" if tuned is None else f", trained on the sample {tuned.geometric():.1f}"
    return (
        f"{count} novel domain{'s' if count > 1 else ''}: {means}, {whose} {answer.geometric():.1f} (perplexity, "
        f"geometric mean), better than {'both' if len(beside) == 2 else 'the base'} on {won} of {count}{also}; "
        f"{seconds:.0f} s of choosing."
    )


def answered(answers: Sequence[tuple[str, bool]]) -> str:
    """What the service's answers were, in words, from (what was taken, whether it abstained) of each domain."""
    base = sum(abstained for _, abstained in answers)
    soups = sum(not abstained and "," in taken for taken, abstained in answers)
    counts = {"a soup": soups, "one adapter": len(answers) - base - soups, "the base model": base}
    parts = [f"{what} for {count}" for what, count in counts.items() if count]
    return "the soup" if soups == len(answers) else f"the answer ({', '.join(parts)})"


def _beating(table: Table) -> str:
    """The lines that count the adapters which beat the base, and the control."""
    others = [(table.base, "base"), *([(table.control, "control")] if table.control else [])]
    lines = [f"adapters that beat the {' / the '.join(name for _, name in others)} (by two standard errors)"]
    for domain in table.domains:
        counts = [f"{w} of {len(table.singles[domain])} ({s})"
                  for w, s in (table.winners(domain, row) for row, _ in others)]  # fmt: skip
        lines.append(f"  {domain}: {' / '.join(counts)}")
    return "\n".join(lines)


def _answers(table: Table, rows: Sequence[Row], width: int) -> str:
    """The lines that say what was mixed, or taken, for each domain."""
    explained = [row for row in rows if row not in (table.base, table.control) and row.key != "soup_uniform"]
    lines = ["what was taken"]
    for domain in table.domains:
        lines.append(f"  {domain}")
        for row in explained:
            said = f"{row.name}: {_taken(row.entries[domain])}"
            lines += textwrap.wrap(said, width, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join(lines)


def _taken(entry: Entry) -> str:
    return f"the base model ({entry.said})" if entry.abstained else entry.said


# --- as JSON ---------------------------------------------------------------------------------------------


def figures(table: Table) -> dict[str, dict[str, Any]]:
    """The averages of every row, and how many adapters beat the base, as figures of a results file.

    No goal is set on any of them: the demo promises the table, not an order in it.
    """
    found = {}
    for row in table.rows:
        found[f"perplexity_geometric_{row.key}"] = _figure(row.geometric(), "perplexity")
        found[f"perplexity_arithmetic_{row.key}"] = _figure(row.arithmetic(), "perplexity")
        found[f"bits_per_byte_{row.key}"] = _figure(row.bits_per_byte(), "bits per byte, arithmetic mean")
        if row is not table.base and table.control not in (None, row):
            found[f"change_to_control_{row.key}"] = _figure(change(_over(row, table.control)), "%")
    if not table.singles:
        return found
    for name, over in (("base", table.base), ("control", table.control)):
        if over is not None:
            pairs = [table.winners(domain, over) for domain in table.domains]
            found[f"adapters_beating_{name}"] = _figure(sum(w for w, _ in pairs), "adapter x domain pairs")
            found[f"adapters_beating_{name}_by_two_se"] = _figure(sum(s for _, s in pairs), "adapter x domain pairs")
    found["adapters_times_domains"] = _figure(sum(len(c) for c in table.singles.values()), "adapter x domain pairs")
    return found


def _figure(value: float, unit: str) -> dict[str, Any]:
    return Figure(value, unit, repeats=[value]).as_json()


def rows(table: Table) -> list[dict[str, Any]]:
    """One JSON row for each method and domain, then one for each adapter and domain."""
    found = []
    for row in table.rows:
        for domain, entry in row.entries.items():
            said = {"method": row.key, "domain": domain, "model": entry.model, "abstained": entry.abstained}
            found.append({**said, "taken": entry.said, **_numbers(table, entry.cell, domain)})
    for domain, cells in table.singles.items():
        for name, cell in cells.items():
            found.append({"method": "adapter", "adapter": name, "domain": domain, **_numbers(table, cell, domain)})
    return found


def _numbers(table: Table, cell: Cell, domain: str) -> dict[str, Any]:
    against = cell.against(table.base.entries[domain].cell)
    return {
        "perplexity": cell.perplexity,
        "mean_nll": cell.mean_nll,
        "bits_per_byte": cell.bits_per_byte,
        "difference": against.difference,
        "standard_error": against.standard_error,
        "tokens": sum(cell.tokens),
        "passages": len(cell.tokens),
    }
