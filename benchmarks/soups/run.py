"""A run of `benchmarks.adaptersoup`: what is asked of its setting, and how answers are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.report import Result
from benchmarks.soups import EFFORTS
from benchmarks.soups.cells import Answer, Answers, Cell, even_average, scored
from benchmarks.soups.setting import HOSTILE, LARGEST, NAMESPACE, Setting
from demo.results import Figure
from registry.uncertainty import Difference, paired_difference

GOALS = {
    "base": {
        "instant": 0.957, "quick": 0.938, "thorough": 0.932, "tune": 0.88, "tune_5": 0.955, "tune_15": 0.925,
        "greedy": 0.985, "kept": 0.9,
        "fresh_15": 6, "fresh_30": 5, "fresh_100": 0,
    },
    "control": {
        "instant": 0.925, "quick": 0.905, "thorough": 0.895, "tune": 0.85, "tune_5": 0.92, "tune_15": 0.885,
        "greedy": 0.98, "kept": 0.85,
        "fresh_15": 9, "fresh_30": 7, "fresh_100": 2,
    },
}  # fmt: skip
"""What figures are to reach on samples of LARGEST passages at most, by what ratios are over."""
WALL = {"quick_vs_forward": 9, "thorough_vs_forward": 35, "tune_vs_forward": 5}


Search = Callable[[Setting, Mapping[str, Mapping[str, np.ndarray]]], Mapping[str, np.ndarray]]
"""What greedy search finds for domains (`greedy.searched`), given the adapters that may be taken, each alone."""


@dataclass
class Run:
    """A run: what is there to ask, and what is asked of it."""

    setting: Setting
    answers: Answers
    over: str
    draws: int
    sizes: Sequence[int]
    result: Result
    search: Search = field(kw_only=True)
    efforts: Sequence[str] = EFFORTS
    greedy: int | None = None
    """Adapters that greedy search may take, the best by themselves; all by default."""
    hostile: Sequence[str] = HOSTILE
    """Hostile sets that are looked at."""

    @property
    def full(self) -> int:
        """Passages of the largest sample."""
        return self.setting.largest

    def goal(self, name: str) -> float | None:
        """Of a figure; none for a run whose largest samples are smaller, which the goals were not set for."""
        return {**GOALS[self.over], **WALL}.get(name) if self.full == LARGEST else None

    @property
    def domains(self) -> tuple[str, ...]:
        """The novel ones."""
        return self.setting.job.novel

    @property
    def suffix(self) -> str:
        """Of the names of ratios."""
        return "ratio" if self.over == "base" else "over_control"

    def answer(self, way: str, domain: str, size: int | None = None, draw: int = 0) -> Answer:
        """What a way answers, to the largest sample by default."""
        return self.answers.get(self.setting, Cell(way, domain, draw, size or self.full))

    def nll(self, answer: Answer) -> np.ndarray:
        """NLL of the domain's test passages under the answer."""
        return scored(self.setting, answer.cell.domain, answer.model, answer.digest)[0]

    def tokens(self, domain: str) -> np.ndarray:
        """Of the domain's test passages."""
        return scored(self.setting, domain, self.setting.base, None)[1]

    def base(self, domain: str) -> np.ndarray:
        """NLL under the base."""
        return scored(self.setting, domain, self.setting.base, None)[0]

    def single(self, domain: str, name: str) -> np.ndarray:
        """NLL under one adapter of the bank."""
        row = self.setting.client.adapter(f"{NAMESPACE}/{name}")
        return scored(self.setting, domain, str(row["ref"]), str(row["digest"]))[0]

    def averaged(self, domain: str, refs: Sequence[str]) -> np.ndarray:
        """NLL under the `even_average` of adapters."""
        cooked = self.setting.client.cook(even_average(refs))
        return scored(self.setting, domain, str(cooked["model"]), str(cooked["digest"]))[0]

    @property
    def bank(self) -> tuple[str, ...]:
        """Adapters that oracles may take: those of the domains, and where ratios are over the control, that too."""
        return self.setting.job.pushed if self.over == "control" else self.setting.job.training

    def zero(self, domain: str) -> np.ndarray:
        """NLL under what ratios are over: the base, or the control adapter."""
        return self.base(domain) if self.over == "base" else self.single(domain, self.setting.job.control)

    def against(self, nll: np.ndarray, other: np.ndarray, domain: str) -> Difference:
        """The paired difference of mean NLL per token."""
        return paired_difference(nll, other, self.tokens(domain))

    def ratio(self, nll: dict[str, list[np.ndarray]]) -> float:
        """Geometric mean over domains and draws of the perplexity over the zero's."""
        found = [
            self.against(one, self.zero(domain), domain).difference for domain, many in nll.items() for one in many
        ]
        return math.exp(float(np.mean(found)))

    def arithmetic(self, nll: dict[str, list[np.ndarray]]) -> float:
        """Arithmetic mean of the perplexities over domains and draws, over that of the zero's."""
        own, zero = [], []
        for domain, many in nll.items():
            tokens = self.tokens(domain).sum()
            own += [math.exp(one.sum() / tokens) for one in many]
            zero += [math.exp(self.zero(domain).sum() / tokens) for _ in many]
        return float(np.mean(own) / np.mean(zero))

    def bits_per_byte(self, nll: np.ndarray, domain: str) -> float:
        """Of the domain's test passages."""
        return float(nll.sum()) / math.log(2) / sum(len(text.encode()) for text in self.setting.test(domain))

    def of(self, way: str, size: int | None = None, draws: int = 1) -> dict[str, list[np.ndarray]]:
        """NLL of a way by domain, one for each draw."""
        return {
            domain: [self.nll(self.answer(way, domain, size, draw)) for draw in range(draws)] for domain in self.domains
        }

    def add(self, name: str, value: float, unit: str = "ratio", goal: float | None = None, note: str = "") -> None:
        """A figure."""
        self.result.figures[name] = Figure(value, unit, goal, note=note)
