"""Makes the table from scores: perplexities, differences, and averages with their kind. Pure functions.

Every comparison includes the base model. The oracle is the best single adapter on the test text: not a method, but the
best that a choice of one adapter can reach.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from demo.results import Figure
from demo.scores import Score
from registry.uncertainty import Difference

CONTROL = "control"
"""The name of the control's row."""


@dataclass(frozen=True)
class Entry:
    """One method on one domain; `description` names the adapters of its answer, or says why it abstained."""

    score: Score
    model: str
    description: str = ""
    abstained: bool = False

    @property
    def is_adapter(self) -> bool:
        """True if the answer is a pushed adapter by itself; a soup of one adapter was trained."""
        return self.model.partition("@")[0].rpartition("/")[2] == self.description


@dataclass(frozen=True)
class Row:
    """One method over all domains."""

    name: str
    entries: Mapping[str, Entry]

    @property
    def key(self) -> str:
        """The name in the form used in figures' names."""
        return re.sub("[^a-z0-9]+", "_", self.name.lower()).strip("_")

    def arithmetic(self) -> float:
        """The arithmetic mean of the domains' perplexities."""
        return fmean(entry.score.perplexity for entry in self.entries.values())

    def bits_per_byte(self) -> float:
        """The arithmetic mean of the domains' bits per byte."""
        return fmean(entry.score.bits_per_byte for entry in self.entries.values())

    def geometric(self) -> float:
        """The geometric mean of the domains' perplexities."""
        return math.exp(fmean(entry.score.mean_nll for entry in self.entries.values()))

    def over(self, reference: Row) -> float:
        """The change in percent from the reference row's geometric mean to this one's."""
        return change(math.log(self.geometric() / reference.geometric()))


@dataclass(frozen=True)
class Table:
    """Every row, the base's first; `singles` has every adapter's score by domain and adapter."""

    rows: Sequence[Row]
    singles: Mapping[str, Mapping[str, Score]]

    @property
    def base(self) -> Row:
        """The base model's row."""
        return self.rows[0]

    @property
    def domains(self) -> list[str]:
        """The novel domains."""
        return list(self.base.entries)

    def difference(self, row: Row, domain: str) -> Difference:
        """The difference of a row's mean NLL against the base on a domain."""
        return row.entries[domain].score.against(self.base.entries[domain].score)

    @property
    def control(self) -> Row | None:
        """The row of the adapter trained on text of no domain, if there is one."""
        return next((row for row in self.rows if row.name == CONTROL), None)

    @property
    def zeros(self) -> dict[str, Row]:
        """The base and, if there is one, the control, by name."""
        return {"base": self.base, **({"control": self.control} if self.control else {})}

    def winners(self, domain: str, over: Row) -> tuple[int, int]:
        """The number of single adapters with a lower NLL than `over`, and the number that are lower by two standard
        errors.
        """
        differences = [score.against(over.entries[domain].score) for score in self.singles[domain].values()]
        return sum(d.difference < 0 for d in differences), sum(
            d.difference < -2 * d.standard_error for d in differences
        )

    def distinct(self) -> tuple[list[Row], dict[str, str]]:
        """The rows without duplicates of later rows, and the name of the row that each duplicate equals.

        The base model, the control and the last row (the service's answer) always remain.
        """
        unique: list[Row] = []
        same: dict[str, str] = {}
        for row in reversed(self.rows):
            twin = next((k for k in unique if _scores(k) == _scores(row)), None)
            if twin is None or row in (self.base, self.control):
                unique.insert(0, row)
            else:
                same[row.name] = twin.name
        return unique, same


def _scores(row: Row) -> dict[str, Score]:
    return {domain: entry.score for domain, entry in row.entries.items()}


def change(difference: float) -> float:
    """The change of perplexity in percent that corresponds to a difference of mean NLL."""
    return 100 * math.expm1(difference)


def oracle(singles: Mapping[str, Mapping[str, Score]], refs: Mapping[str, str]) -> Row:
    """The best single adapter of each domain, chosen on the test text."""
    best = {domain: min(scores, key=lambda name: scores[name].mean_nll) for domain, scores in singles.items()}
    entries = {domain: Entry(singles[domain][name], refs[name], description=name) for domain, name in best.items()}
    return Row("oracle: best single adapter", entries)


# --- as text ---------------------------------------------------------------------------------------------


def text(table: Table, *, width: int = 100) -> str:
    """The table as text: each domain with all methods and their adapters, then averages."""
    rows, same = table.distinct()
    label = max(len(row.name) for row in rows) + 2
    blocks = ["\n".join(_domain(table, rows, domain, label, width)) for domain in table.domains]
    repeats = [f"{name}: in every domain the same as {twin}" for name, twin in same.items()]
    return "\n\n".join([*blocks, "\n".join([*_averages(table, rows, label), *repeats])])


def _domain(table: Table, rows: Sequence[Row], domain: str, label: int, width: int) -> Iterator[str]:
    """The lines of all methods: perplexity, its change against the base in percent with the standard error, and the
    adapters.
    """
    yield domain
    for row in rows:
        entry, difference = row.entries[domain], table.difference(row, domain)
        error = 100 * math.exp(difference.difference) * difference.standard_error
        changed = "" if row is table.base else f"{change(difference.difference):+6.1f} ± {error:.1f} %"
        description = f"the base model ({entry.description})" if entry.abstained else entry.description
        line = f"  {row.name:<{label}}{entry.score.perplexity:8.2f}  {changed:16}{description}"
        yield from textwrap.wrap(line.rstrip(), width, subsequent_indent=" " * 8)
    for name, zero in table.zeros.items() if table.singles else ():
        won, surely = table.winners(domain, zero)
        yield f"  {won} of {len(table.singles[domain])} adapters beat the {name} ({surely} by two standard errors)"


def _averages(table: Table, rows: Sequence[Row], label: int) -> Iterator[str]:
    label = max(label, 27)
    head = f"{'perplexity over all domains':<{label}}  arithmetic  geometric  bits/byte  to the base"
    yield head + ("  to the control" if table.control else "")
    for row in rows:
        line = f"{row.name:<{label}}  {row.arithmetic():10.2f}  {row.geometric():9.2f}"
        line += f"  {row.bits_per_byte():9.3f}"
        for zero, room in zip(table.zeros.values(), (11, 14), strict=False):
            line += f"  {row.over(zero):+{room - 2}.1f} %" if row not in (table.base, zero) else " " * (room + 2)
        yield line.rstrip()


def sentence(table: Table, *, answer: Row, seconds: float) -> str:
    """The result in one sentence: the geometric means of base, control and the service's answers.

    `answer` wins a domain if its perplexity is below that of the base and of the control.
    """
    whose = answered(list(answer.entries.values()))
    zeros = table.zeros
    won = sum(
        all(answer.entries[d].score.mean_nll < row.entries[d].score.mean_nll for row in zeros.values())
        for d in table.domains
    )
    count = len(table.domains)
    means = ", ".join(f"{name} {row.geometric():.1f}" for name, row in zeros.items())
    return (
        f"{count} novel domain{'s' if count > 1 else ''}: {means}, {whose} {answer.geometric():.1f} (perplexity, "
        f"geometric mean), better than {'both' if len(zeros) == 2 else 'the base'} on {won} of {count}; "
        f"{seconds:.0f} s of choosing."
    )


def answered(answers: Sequence[Entry]) -> str:
    """The service's answers in words."""
    base = sum(answer.abstained for answer in answers)
    adapters = sum(answer.is_adapter for answer in answers)
    soups = len(answers) - base - adapters
    counts = {"a soup": soups, "one adapter": adapters, "the base model": base}
    phrases = [f"{kind} for {count}" for kind, count in counts.items() if count]
    return "the soup" if soups == len(answers) else f"the answer ({', '.join(phrases)})"


# --- as JSON ---------------------------------------------------------------------------------------------


def figures(table: Table) -> dict[str, dict[str, Any]]:
    """The averages of each row and the number of adapters that beat the base, as figures of a results file.

    They have no goals: the demo does not promise an order of the methods.
    """
    values: dict[str, tuple[float, str]] = {}
    for row in table.rows:
        values[f"perplexity_geometric_{row.key}"] = row.geometric(), "perplexity"
        values[f"perplexity_arithmetic_{row.key}"] = row.arithmetic(), "perplexity"
        values[f"bits_per_byte_{row.key}"] = row.bits_per_byte(), "bits per byte, arithmetic mean"
        if table.control and row not in (table.base, table.control):
            values[f"change_to_control_{row.key}"] = row.over(table.control), "%"
    for name, over in table.zeros.items() if table.singles else ():
        won, surely = (sum(each) for each in zip(*(table.winners(d, over) for d in table.domains), strict=True))
        values[f"adapters_beating_{name}"] = won, "adapter x domain pairs"
        values[f"adapters_beating_{name}_by_two_se"] = surely, "adapter x domain pairs"
    if table.singles:
        values["adapters_times_domains"] = sum(map(len, table.singles.values())), "adapter x domain pairs"
    return {name: Figure(value, unit, repeats=[value]).as_json() for name, (value, unit) in values.items()}


def rows(table: Table) -> list[dict[str, Any]]:
    """One JSON row for each method and domain, then one for each adapter and domain."""
    json_rows = []
    for row in table.rows:
        for domain, entry in row.entries.items():
            columns = {"method": row.key, "domain": domain, "model": entry.model, "abstained": entry.abstained}
            json_rows.append({**columns, "taken": entry.description, **_numbers(table, entry.score, domain)})
    for domain, scores in table.singles.items():
        for name, score in scores.items():
            json_rows.append({"method": "adapter", "adapter": name, "domain": domain, **_numbers(table, score, domain)})
    return json_rows


def _numbers(table: Table, score: Score, domain: str) -> dict[str, Any]:
    against = score.against(table.base.entries[domain].score)
    return {
        "perplexity": score.perplexity,
        "mean_nll": score.mean_nll,
        "bits_per_byte": score.bits_per_byte,
        "difference": against.difference,
        "standard_error": against.standard_error,
        "tokens": sum(score.tokens),
        "passages": len(score.tokens),
    }
