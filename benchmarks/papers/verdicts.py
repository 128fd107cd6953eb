"""The claims of `claims.toml` with our estimates, intervals and verdicts.

Called by `__main__` and by `docs.papers`. It reads results and trains nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from benchmarks.papers.variants import PLAN, RATES, VARIANTS, first_of
from benchmarks.soups import ALONE, BASE, CONTROL
from registry.spec import Frozen

PAPERS = {"houlsby": "Houlsby et al.", "sparse": "SparseAdapter", "adamix": "AdaMix", "adaptersoup": "AdapterSoup"}
"""The papers by their name in `claims.toml`, whose other claims are ours."""
LEVEL = 0.05
"""Of the verdicts of one paper together, and of an interval alone."""
Row = Mapping[str, Any]
MANY = 1e6
"""Degrees of freedom of a bootstrapped error."""
RATE_SEED = 0
"""The seed with which learning rates are chosen; its training at the chosen rate counts as a seed."""
DECIDING_P = LEVEL / 15
"""A p-value that decides a claim among some fifteen of a paper."""
MOST_TIMES = 20
"""A claim that needs more than this many times its seeds lies on the margin."""
Key = tuple[str, str, float, int]
"""Task, variant, learning rate and seed of a cell."""
Verdict = Literal["agrees", "disagrees", "undecided", "not run yet"]


class Claim(Frozen):
    """A claim of a paper as a contrast of scores that is positive if the claim holds (`claims.toml` has the rule)."""

    paper: str
    name: str
    source: str
    figure: str
    says: str
    kind: Literal["better", "as_good"]
    margin: float = 2.0
    contrast: dict[str, float]
    seeds: int = 10
    """Unused by claims about soups."""
    on: tuple[str, ...] = ("sst2",)
    """The tasks, or the results file of the soups."""
    repeats: str = ""
    """The claim that tests the same, if there is one: a claim that repeats another is not judged."""

    @property
    def trained(self) -> bool:
        """True if its cells are trained here."""
        return set(self.on) <= set(PLAN["tasks"])


CLAIMS = [Claim.model_validate(claim) for claim in PLAN["claims"]]


@dataclass(frozen=True)
class Estimate:
    """A contrast in points with its standard error and degrees of freedom (Welch and Satterthwaite)."""

    value: float
    error: float
    freedom: float
    flaw: str = ""
    """The reason why it decides nothing, if there is one."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of this claim alone."""
        half = self.error * float(stdtrit(self.freedom, 1 - LEVEL / 2))
        return self.value - half, self.value + half

    def p_above(self, threshold: float) -> float:
        """The p-value, two-sided, of a contrast above the threshold; 1 if the estimate is not above it."""
        if self.value <= threshold:
            return 1.0
        return 2 * float(stdtr(self.freedom, (threshold - self.value) / self.error)) if self.error else 0.0

    def p_below(self, threshold: float) -> float:
        """The p-value of a contrast below the threshold."""
        return Estimate(-self.value, self.error, self.freedom).p_above(-threshold)


@dataclass(frozen=True)
class Judged:
    """A claim with its estimate (None until all of its cells are there), its verdict, and a note on what is missing."""

    claim: Claim
    estimate: Estimate | None
    verdict: Verdict
    note: str = ""


def judge(rows: Sequence[Row], results: Path) -> list[Judged]:
    """All claims in the order of `claims.toml`; `rows` are cells, and `results` has the results files of the soups."""
    cells = Cells(rows)
    estimates = {claim.name: _estimate(claim, cells, results) for claim in CLAIMS}
    judged: dict[str, Judged] = {}
    for paper in dict.fromkeys(claim.paper for claim in CLAIMS):
        claims = [claim for claim in CLAIMS if claim.paper == paper]
        smallest = {claim.name: _smallest_p(claim, estimates[claim.name]) for claim in claims}
        is_open = False
        for rank, claim in enumerate(sorted(claims, key=lambda claim: smallest[claim.name])):
            level = LEVEL / (len(claims) - rank)
            is_open = is_open or smallest[claim.name] > level  # Holm's procedure stops at the first
            judged[claim.name] = _judged(claim, estimates[claim.name], 0.0 if is_open else level)
    return [judged[claim.name] for claim in CLAIMS]


def _thresholds(claim: Claim) -> tuple[float, float]:
    """The claim agrees above the first, and disagrees below the second."""
    return (0.0, claim.margin) if claim.kind == "better" else (-claim.margin, -claim.margin)


def _smallest_p(claim: Claim, estimate: Estimate | str) -> float:
    if isinstance(estimate, str) or estimate.flaw or claim.repeats:
        return 1.0
    above, below = _thresholds(claim)
    return min(estimate.p_above(above), estimate.p_below(below))


def _judged(claim: Claim, estimate: Estimate | str, level: float) -> Judged:
    if isinstance(estimate, str):
        return Judged(claim, None, "not run yet", estimate)
    if level:
        agrees = estimate.p_above(_thresholds(claim)[0]) <= level
        return Judged(claim, estimate, "agrees" if agrees else "disagrees")
    note = _seeds_needed(claim, estimate) if claim.trained else ""
    return Judged(claim, estimate, "undecided", estimate.flaw or claim.repeats or note)


def _seeds_needed(claim: Claim, estimate: Estimate) -> str:
    """The number of seeds that would decide the claim if the estimate stayed the same."""
    more = [times / claim.seeds for times in range(claim.seeds + 1, MOST_TIMES * claim.seeds + 1)]
    expected = ((n, Estimate(estimate.value, estimate.error / math.sqrt(n), estimate.freedom * n)) for n in more)
    times = next((n for n, repeated in expected if _smallest_p(claim, repeated) <= DECIDING_P), None)
    return f"needs about {round(times * claim.seeds)} seeds" if times else "on the margin"


# --- estimates --------------------------------------------------------------------------------------


class Cells:
    """The cells of a results file by task, variant, learning rate and seed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(row["task"], row["variant"], row["learning_rate"], row["seed"]): row for row in rows}

    def missing_rate(self, task: str, family: str) -> tuple[str, float] | None:
        """The family's first variant and a rate that it was not tried with; None if there is none."""
        first = first_of(family)
        return next(((first, rate) for rate in RATES[family] if (task, first, rate, RATE_SEED) not in self.rows), None)

    def rate(self, task: str, family: str) -> float:
        """The family's rate with the lowest validation loss, all of them tried with the first seed."""
        first = first_of(family)
        losses = {rate: self.rows[task, first, rate, RATE_SEED]["valid_loss"] for rate in RATES[family]}
        return min(losses, key=lambda rate: math.inf if losses[rate] is None else losses[rate])

    def missing(self, claim: Claim) -> list[Key]:
        """The cells that a claim lacks, in the order to run them; of a family without a rate the rates only."""
        lacking: dict[Key, None] = {}
        for seed in range(claim.seeds):
            for task in claim.on:
                for name in {term.partition(":")[0]: None for term in claim.contrast}:
                    family = VARIANTS[name].family
                    untried = self.missing_rate(task, family)
                    key = (task, *untried, RATE_SEED) if untried else (task, name, self.rate(task, family), seed)
                    if key not in self.rows:
                        lacking[key] = None
        return list(lacking)

    def at_rate(self, task: str, name: str) -> list[Row]:
        """The cells of a variant at its family's rate, by seed; none before the rate has been chosen."""
        family = VARIANTS[name].family
        if self.missing_rate(task, family):
            return []
        where = (task, name, self.rate(task, family))
        return [self.rows[key] for key in sorted(self.rows) if key[:3] == where]

    def contrast(self, claim: Claim, task: str) -> np.ndarray:
        """(seeds,): the contrast of a claim whose cells are all there."""
        total = np.zeros(claim.seeds)
        for term, factor in claim.contrast.items():
            name, _, measure = term.partition(":")
            rows = self.at_rate(task, name)[: claim.seeds]
            scores = [row["scores"] for row in rows]  # a training that diverged has no measures
            total += factor * np.array([each.get(measure or "score", each["score"]) for each in scores])
        return total


def _estimate(claim: Claim, cells: Cells, results: Path) -> Estimate | str:
    """The estimate of a claim, or a note on what it lacks."""
    if claim.on[0].startswith("adaptersoup"):
        return _of_soups(claim, results)
    if cells.missing(claim):
        names = {term.partition(":")[0] for term in claim.contrast}
        done = sum(len(cells.at_rate(task, name)[: claim.seeds]) for task in claim.on for name in names)
        return f"{done} of {claim.seeds * len(names) * len(claim.on)} trainings"
    flat = sum(task in PLAN["setting"]["not_learnt"] for task in claim.on)
    flaw = f"{flat} of the {len(claim.on)} sets are not learnt" if flat else ""
    return replace(combined([cells.contrast(claim, task) for task in claim.on]), flaw=flaw)


def combined(strata: Sequence[np.ndarray]) -> Estimate:
    """The mean over tasks of the means of paired differences (seeds,)."""
    squared_errors = [float(values.var(ddof=1)) / len(values) for values in strata]
    variance = sum(squared_errors)
    shares = sum(
        squared_error**2 / (len(values) - 1) for squared_error, values in zip(squared_errors, strata, strict=True)
    )
    freedom = variance**2 / shares if shares else sum(len(values) - 1 for values in strata)
    mean = float(np.mean([values.mean() for values in strata]))
    return Estimate(mean, math.sqrt(variance) / len(strata), freedom)


def _of_soups(claim: Claim, results: Path) -> Estimate | str:
    """Perplexity saved on the novel domains by ways of `benchmarks.adaptersoup`, in percent, on samples of one size.

    Errors are those of the differences to the base if the claim is about it, else to the control.
    """
    path = results / f"{claim.on[0]}.json"
    if not path.is_file():
        return "`make reproduce-adaptersoup` measures it"
    sample_sizes = 0, PLAN["setting"]["soup_passages"]  # single adapters have no sample
    rows = [
        row
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]
        if not row["hostile"] and row["passages"] in sample_sizes
    ]
    value, error = ("difference", "standard_error") if BASE in claim.contrast else ("over", "over_error")
    ways: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for row in rows:
        domain, measured = row["domain"], (row[value], row[error])
        if row["way"] == ALONE and not row["adapter"].startswith(CONTROL):
            ways["best single"][domain] = min(measured, ways["best single"].get(domain, measured))
        else:
            ways[row["way"]][domain] = measured
    lacking = [way for way in claim.contrast if way not in ways]
    if lacking:
        return f"`benchmarks.adaptersoup` has no {lacking[0].replace('_', ' ')}"
    terms = [(factor, *measured) for way, factor in claim.contrast.items() for measured in ways[way].values()]
    abstained = Counter(row["way"] for row in rows if row.get("abstained"))
    domains = len(ways[next(iter(claim.contrast))])
    flaw = next(
        (
            f"{way} chooses no adapter in {abstained[way]} of {domains} domains"
            for way in claim.contrast
            if abstained[way] > domains / 2
        ),
        "",
    )
    same = len({tuple(ways[way].values()) for way in claim.contrast}) == 1
    return Estimate(
        sum(-100 * factor * nll for factor, nll, _ in terms) / domains,
        100 * math.hypot(*(factor * error for factor, _, error in terms)) / domains,
        MANY,
        "the soups are the same" if same else flaw,
    )
