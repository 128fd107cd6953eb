"""From cells to the table: perplexities, differences, averages that say which kind they are. Pure functions.

The base model stands in every comparison; the oracle, the best single adapter on the test text itself, is no method
but the mark that choosing one adapter could reach at best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.cells import Cell
from demo.results import Figure
from registry.uncertainty import Difference


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
        """The row's name in names of figures: lower case, with underscores."""
        return re.sub("[^a-z0-9]+", "_", self.name.lower()).strip("_")

    def arithmetic(self) -> float:
        """The arithmetic mean of the domains' perplexities."""
        return math.fsum(entry.cell.perplexity for entry in self.entries.values()) / len(self.entries)

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

    def winners(self, domain: str) -> tuple[int, int]:
        """How many single adapters have a lower NLL than the base, and how many by two standard errors."""
        base = self.base.entries[domain].cell
        found = [cell.against(base) for cell in self.singles[domain].values()]
        return sum(d.difference < 0 for d in found), sum(d.difference < -2 * d.standard_error for d in found)


def oracle(singles: Mapping[str, Mapping[str, Cell]], refs: Mapping[str, str]) -> Row:
    """The best single adapter of each domain, chosen on the test text."""
    entries = {}
    for domain, cells in singles.items():
        name = min(cells, key=lambda name: cells[name].mean_nll)
        entries[domain] = Entry(cells[name], refs[name], said=name)
    return Row("oracle: best single adapter", entries)


# --- as text ---------------------------------------------------------------------------------------------


def text(table: Table, *, width: int = 110) -> str:
    """The table for people: blocks of domains as wide as the terminal, then averages, then who beat the base."""
    label = max(len(row.name) for row in table.rows)
    across = max(1, (width - label) // (CELL + 2))
    blocks = [table.domains[i : i + across] for i in range(0, len(table.domains), across)]
    parts = [_block(table, domains, label) for domains in blocks]
    whole = "\n\n".join([*parts, _averages(table, label), _beating(table), _answers(table)])
    return "\n".join(line.rstrip() for line in whole.split("\n"))


CELL = 22


def _block(table: Table, domains: Sequence[str], label: int) -> str:
    lines = ["".ljust(label) + "".join(f"  {domain[:CELL]:>{CELL}}" for domain in domains)]
    lines += [row.name.ljust(label) + "".join(f"  {_shown(table, row, d):>{CELL}}" for d in domains)
              for row in table.rows]  # fmt: skip
    return "\n".join(lines)


def _shown(table: Table, row: Row, domain: str) -> str:
    """Perplexity, and the difference of mean NLL to the base with its standard error."""
    entry = row.entries[domain]
    if row is table.base:
        return f"{entry.cell.perplexity:.2f}{'':15}"
    if entry.abstained:
        return f"{entry.cell.perplexity:.2f}     = the base"
    found = table.difference(row, domain)
    return f"{entry.cell.perplexity:.2f} {found.difference:+.4f}±{found.standard_error:.4f}"


def _averages(table: Table, label: int) -> str:
    lines = ["average perplexity".ljust(label) + "  arithmetic   geometric"]
    lines += [f"{row.name.ljust(label)}  {row.arithmetic():10.2f}  {row.geometric():10.2f}" for row in table.rows]
    return "\n".join(lines)


def _beating(table: Table) -> str:
    lines = ["adapters that beat the base (by two standard errors) on the test passages"]
    for domain in table.domains:
        count, surely = table.winners(domain)
        lines.append(f"  {domain}: {count} of {len(table.singles[domain])} ({surely})")
    return "\n".join(lines)


def _answers(table: Table) -> str:
    """The lines that say which adapters the oracle, the soups and the service took."""
    lines = ["what was taken"]
    for domain in table.domains:
        shown = [f"{row.name}: {_taken(row.entries[domain])}" for row in table.rows if row.key in _EXPLAINED]
        lines += [f"  {domain}", *(f"    {text}" for text in shown)]
    return "\n".join(lines)


_EXPLAINED = {
    "soup_similarity", "soup_clustering_paper", "soup_clustering_default", "oracle_best_single_adapter",
    "the_service_verified",
}  # fmt: skip


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
    pairs = [table.winners(domain) for domain in table.domains]
    found["adapters_beating_base"] = _figure(sum(w for w, _ in pairs), "adapter x domain pairs")
    found["adapters_beating_base_by_two_se"] = _figure(sum(s for _, s in pairs), "adapter x domain pairs")
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
