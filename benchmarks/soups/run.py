"""A run of `benchmarks.adaptersoup`: the result of each way on a sample, and their comparison."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.report import Result
from benchmarks.soups import BASE, CONTROL, EFFORTS, ENSEMBLE, GREEDY, LADDER, PAPER, SINGLE
from benchmarks.soups.cells import Answers, Cell, scored
from benchmarks.soups.ladder import Ladder
from benchmarks.soups.setting import HOSTILE, NAMESPACE, Setting
from demo.results import Figure, Row
from registry.uncertainty import Difference, paired_difference

_LORA = {
    "instant_over_control": 0.94,
    "quick_over_control": 0.89,
    "tune_over_control": 0.74,
    "quick_vs_forward": 6,
    "tune_vs_forward": 12,
    "tune_vs_peft_5": 8,
    "tune_vs_peft_15": 8,
    "tune_vs_peft_30": 6,
    "tune_vs_peft_100": 4,
    "tune_vs_peft_best_5": 6,
    "tune_vs_peft_best_15": 4,
    "tune_vs_peft_best_30": 2,
    "tune_vs_peft_best_100": 0,
    "worse_than_base": 0,
    "recommended_within_1se": 0.9,
}
GOALS: Mapping[str, Mapping[str, float]] = {
    "smollm2_lora": _LORA,
    "smollm2": {**_LORA, "quick_over_control": 0.91, "tune_over_control": 0.78, "tune_vs_peft_best_30": 0},
    "gemma_lora": {
        "instant_over_control": 0.95,
        "quick_over_control": 0.93,
        "tune_over_control": 0.8,
        "quick_vs_forward": 6,
        "tune_vs_forward": 12,
        "tune_vs_peft_15": 5,
        "tune_vs_peft_60": 5,
        "tune_vs_peft_best_15": 0,
        "tune_vs_peft_best_60": 0,
        "worse_than_base": 0,
    },
    "base_lm": {"worse_than_base": 0},
}
"""Goals of the figures, by bank."""

HOSTILE_SAMPLE = 15
"""Passages of a hostile set that are cooked from."""

Search = Callable[[Setting, Mapping[str, Mapping[str, np.ndarray]]], Mapping[str, np.ndarray]]
"""The results of greedy search for domains (`greedy.searched`), from the scores of each single adapter."""

Ensemble = Callable[[Setting, Cell], np.ndarray]
"""The NLL of a cell's test passages under an ensemble (`ensemble.clustering_ensemble`)."""


@dataclass(frozen=True)
class Plan:
    """The scope of a run; `greedy` is the number of adapters for greedy search, the best single ones."""

    bank: str
    sizes: Sequence[int] = (5, 15, 30, 100)
    draws: int = 1
    ways: Sequence[str] = (*PAPER, *EFFORTS, *LADDER)
    hostile: Sequence[str] = HOSTILE
    greedy: int = 6
    """1 for the best single adapter without a search, 0 for no oracles at all."""

    @property
    def full(self) -> int:
        """Passages of the largest sample."""
        return max(self.sizes)


@dataclass
class Run:
    """A plan on a setting, with its cells; figures and rows go into `result`."""

    setting: Setting
    plan: Plan
    answers: Answers
    ladder: Ladder
    search: Search
    ensemble: Ensemble
    result: Result = field(default_factory=Result)

    @property
    def domains(self) -> tuple[str, ...]:
        """The novel ones."""
        return self.setting.job.novel

    def cells(self, domain: str) -> Iterator[Cell]:
        """Every cell of a domain, or of a hostile set."""
        hostile = domain in HOSTILE
        for size in (min(HOSTILE_SAMPLE, self.plan.full),) if hostile else self.plan.sizes:
            for draw in range(1 if hostile else self.plan.draws):
                yield Cell(BASE, domain, draw, size)
                for way in self.plan.ways:
                    if way in EFFORTS or not hostile:
                        yield Cell(way, domain, draw, size)

    def fill(self) -> None:
        """Compute every cell, domain by domain, saying what each took."""
        for domain in (*self.domains, *self.plan.hostile):
            for cell in self.cells(domain):
                began = time.perf_counter()
                self.nll(cell)
                if (seconds := time.perf_counter() - began) > 1:
                    print(f"{domain}, {cell.size} passages: {cell.way} in {seconds:.0f} s", file=sys.stderr)

    def nll(self, cell: Cell) -> np.ndarray:
        """NLL of the domain's test passages under a cell's model."""
        if cell.way in LADDER:
            return np.array(self.ladder.get(self.setting, cell).best().nll)
        if cell.way == ENSEMBLE:
            return self.ensemble(self.setting, cell)
        answer = self.answers.get(self.setting, cell)
        return scored(self.setting, cell.domain, answer.model, answer.digest)[0]

    def about(self, cell: Cell) -> Row:
        """Fields of a cell's row about its seconds and its model."""
        forward = self.answers.get(self.setting, replace(cell, way=BASE)).seconds
        if cell.way in LADDER:
            rung = self.ladder.get(self.setting, cell).best()
            return {"wall_s": rung.seconds, "forward_s": forward, "trained_passes": rung.passes, "rate": rung.rate}
        if cell.way == ENSEMBLE:
            return {"forward_s": forward}
        answer = self.answers.get(self.setting, cell)
        return {
            "wall_s": answer.seconds,
            "forward_s": forward,
            "abstained": answer.digest is None,
            "width": answer.width,
            "refused": answer.refused,
            "commit": answer.commit,
        }

    def sign(self, tune: Cell, *, any_time: bool) -> int:
        """1 where a tuned soup is better by more than a standard error than PEFT's best, -1 where it is worse, else 0.

        That is of trainings made in the same time, in passes of the base over the sample, or of all.
        """
        about = self.about(tune)
        within = float("inf") if any_time else about["wall_s"] / about["forward_s"]
        rung = self.ladder.get(self.setting, replace(tune, way="peft")).best(within=within)
        difference = self.against(self.nll(tune), np.array(rung.nll), tune.domain)
        return int(abs(difference.difference) > difference.standard_error) * (1 if difference.difference < 0 else -1)

    def tokens(self, domain: str) -> np.ndarray:
        """Tokens of the domain's test passages."""
        return scored(self.setting, domain, self.setting.base, None)[1]

    def base(self, domain: str) -> np.ndarray:
        """NLL under the base."""
        return scored(self.setting, domain, self.setting.base, None)[0]

    def single(self, domain: str, name: str) -> np.ndarray:
        """NLL under one adapter of the bank."""
        row = self.setting.client.adapter(f"{NAMESPACE}/{name}")
        return scored(self.setting, domain, str(row["ref"]), str(row["digest"]))[0]

    def control(self, domain: str) -> np.ndarray:
        """NLL under the control adapter, which ratios are over."""
        return self.single(domain, self.setting.job.control)

    @cached_property
    def references(self) -> dict[str, dict[str, np.ndarray]]:
        """NLL by way and domain under models that no sample made: base, control, and the oracles that saw the test.

        The oracles are the best single adapter, and the average that greedy search finds.
        """
        models = {
            BASE: {domain: self.base(domain) for domain in self.domains},
            CONTROL: {domain: self.control(domain) for domain in self.domains},
        }
        if not self.plan.greedy:
            return models
        alone: dict[str, dict[str, np.ndarray]] = {}
        for domain in self.domains:
            singles = {name: self.single(domain, name) for name in self.setting.job.pushed}
            ranked = sorted(singles, key=lambda name: float(singles[name].sum()))
            alone[domain] = {name: singles[name] for name in ranked[: self.plan.greedy]}
        best = {domain: next(iter(singles.values())) for domain, singles in alone.items()}
        if self.plan.greedy == 1:
            return {**models, SINGLE: best}
        return {**models, SINGLE: best, GREEDY: dict(self.search(self.setting, alone))}

    def against(self, nll: np.ndarray, reference: np.ndarray, domain: str) -> Difference:
        """The paired difference of mean NLL per token."""
        return paired_difference(nll, reference, self.tokens(domain))

    def add_row(self, cell: Cell, nll: np.ndarray, **more: Any) -> None:
        """Add a row: mean NLL per token less the base's, and less the control's, with standard errors."""
        base, control = (
            self.against(nll, reference(cell.domain), cell.domain) for reference in (self.base, self.control)
        )
        self.result.rows.append(
            {
                "domain": cell.domain,
                "way": cell.way,
                "passages": cell.size,
                "draw": cell.draw,
                "hostile": cell.domain in HOSTILE,
                "difference": base.difference,
                "standard_error": base.standard_error,
                "over": control.difference,
                "over_error": control.standard_error,
                **more,
            }
        )

    def rows(self, way: str, size: int) -> list[Row]:
        """Rows of a way on samples of a size of the novel domains."""
        keys = ("way", "passages", "hostile")
        return [row for row in self.result.rows if tuple(row[key] for key in keys) == (way, size, False)]

    def add(self, name: str, value: float, unit: str, note: str, *, size: int | None = None) -> None:
        """Add a figure with its goal on this bank, of a sample size under the name with the size.

        That of the largest has the name alone too.
        """
        if size is not None:
            self.result.figures[f"{name}_{size}"] = Figure(value, unit, note=note)
        if size in (None, self.plan.full):
            self.result.figures[name] = Figure(value, unit, GOALS[self.plan.bank].get(name), note=note)
