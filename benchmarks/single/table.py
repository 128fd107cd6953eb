"""The rows of AdapterSoup's Table 3 on test text, its claims, and the mixing curves.

Called by the experiment with what validation text chose. Only the oracle rows use test text to choose, and are labelled
as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from benchmarks.claims import Claim, Scored, claim_row, contrast
from benchmarks.single.choosing import Chosen
from benchmarks.single.making import Pair
from benchmarks.single.scoring import Ingredient, Model, Scorer, soup
from benchmarks.single.setting import HIGH, INITS, LOW, Setting, Texts
from demo.results import Row
from demo.scores import Score

BASE = "base"
Told = Callable[[int, int, str], object]


@dataclass(frozen=True)
class Line:
    """A line of the table: a model, and what it is called."""

    method: str
    label: str
    model: Model


@dataclass(frozen=True)
class Found:
    """Every line's cells on test text by domain, the domain itself first."""

    lines: Mapping[str, Line]
    cells: Mapping[str, Mapping[str, Score]]
    """method -> domain -> cell."""

    @property
    def domains(self) -> list[str]:
        """The domain of the grid, then those held out."""
        return list(self.cells[BASE])


Grid = Mapping[tuple[float, int], Ingredient]
"""(learning rate, order of the data) -> adapter."""


def by_rate(grid: Grid, rate: float) -> list[Ingredient]:
    """The adapters of one learning rate, by the order of their data."""
    return [one for (at, _), one in sorted(grid.items()) if at == rate]


def lines(grid: Grid, chosen: Chosen) -> Iterator[Line]:
    """Everything that is scored on test text; single adapters and finalists are there for the oracle."""
    everyone = list(grid.values())
    yield Line(BASE, "base model", Model())
    yield Line("best_single", "best single adapter in-domain", soup([chosen.best_single]))
    yield Line("best_single_outside", "best single adapter held out", soup([chosen.best_single_outside]))
    for rate in sorted({rate for rate, _ in grid}, reverse=True):
        yield Line(f"soup_{rate:g}", f"soup of learning rate {rate:g}", soup(by_rate(grid, rate)))
    yield Line("soup_uniform", f"uniform soup of all {len(everyone)}", soup(everyone))
    yield Line("soup_inside", "best triple in-domain", chosen.best_inside)
    yield Line("soup_outside", "best triple held out", chosen.best_outside)
    inside, outside = chosen.best_inside.ingredients, chosen.best_outside.ingredients
    yield Line("ensemble_inside", "logit ensemble of the best triple in-domain", Model(inside, ensemble=True))
    yield Line("ensemble_outside", "logit ensemble of the best triple held out", Model(outside, ensemble=True))
    yield Line("ensemble_all", f"logit ensemble of all {len(everyone)}", Model(tuple(everyone), ensemble=True))
    for one in everyone:
        yield Line(f"adapter:{one.name}", one.name, soup([one]))
    for number, model in enumerate(chosen.finalists):
        yield Line(f"finalist:{number}", "finalist", model)


def measure(scorer: Scorer, setting: Setting, grid: Grid, chosen: Chosen, told: Told) -> Found:
    """Score all of it on test text, and choose the oracles."""
    named = {line.method: line for line in lines(grid, chosen)}
    columns = {
        texts.domain: scorer.scores([line.model for line in named.values()], texts, told)
        for texts in setting.testing.domains
    }
    cells = {
        method: {domain: column[number] for domain, column in columns.items()}
        for number, method in enumerate(named)
    }  # fmt: skip
    first, *others = columns
    for method, label, over in (
        ("oracle_inside", "best on test in-domain (oracle)", [first]),
        ("oracle_outside", "best on test held out (oracle)", others),
    ):
        best = oracle(cells, named, over)
        named[method], cells[method] = Line(method, label, named[best].model), cells[best]
    return Found(named, cells)


def oracle(cells: Mapping[str, Mapping[str, Score]], named: Mapping[str, Line], domains: Sequence[str]) -> str:
    """The single adapter or soup that test text itself calls the best; no ensemble, which costs more."""
    able = [method for method, line in named.items() if line.model.ingredients and not line.model.ensemble]
    return min(able, key=lambda method: fmean(cells[method][domain].mean_nll for domain in domains))


def rows(found: Found, grid: Grid, *, parameters: int, cost: float) -> Iterator[Row]:
    """A row for each line and domain; `parameters` and `cost` are those of one adapter beside the base model.

    Single adapters are rows of the method `adapter`; finalists that were not chosen have none.
    """
    rates = {one: rate for (rate, _), one in grid.items()}
    for method, by_domain in found.cells.items():
        if method.startswith("finalist:"):
            continue
        line = found.lines[method]
        for domain, cell in by_domain.items():
            against = cell.against(found.cells[BASE][domain])
            yield {
                "method": "adapter" if method.startswith("adapter:") else method, "label": line.label,
                "domain": domain, "perplexity": cell.perplexity, "bits_per_byte": cell.bits_per_byte,
                "difference": against.difference, "standard_error": against.standard_error,
                "passages": len(cell.nll), "tokens": sum(cell.tokens), **_costs(line.model, parameters, cost),
                "members": [one.name for one in line.model.ingredients],
                "learning_rates": sorted((rates[one] for one in line.model.ingredients), reverse=True),
            }  # fmt: skip


def _costs(model: Model, parameters: int, cost: float) -> Row:
    """Parameters trained for a model, and multiplications a token over the base model's."""
    count = len(model.ingredients)
    passes = count if model.ensemble else 1
    return {"parameters_trained": count * parameters, "relative_cost": passes * cost if count else 1.0}


# --- claims -----------------------------------------------------------------------------------------

PAPER = "AdapterSoup, section 4.3 and Table 3"
OURS = "not in the paper: a single adapter is chosen on held-out text, as the triple is"
COMPARISONS: tuple[tuple[str, str, tuple[str, str], bool], ...] = (
    ("low_rates_in_domain", "the soup of a low learning rate beats that of a high one in-domain",
     ("soup_low", "soup_high"), True),
    ("high_rates_held_out", "the soup of a high learning rate beats that of a low one held out",
     ("soup_high", "soup_low"), False),
    ("low_singles_in_domain", "adapters of a low learning rate beat those of a high one in-domain",
     ("low", "high"), True),
    ("high_singles_held_out", "adapters of a high learning rate beat those of a low one held out",
     ("high", "low"), False),
    ("soup_in_domain", "the best triple beats the best single adapter in-domain", ("soup_inside", "best_single"), True),
    ("soup_over_inside_single", "held out, the best triple there beats the single adapter that is best in-domain",
     ("soup_outside", "best_single"), False),
    ("uniform_over_inside_single", "held out, the uniform soup beats the single adapter that is best in-domain",
     ("soup_uniform", "best_single"), False),
    ("soup_over_outside_single", "the best triple beats the best single adapter held out, both chosen on held-out text",
     ("soup_outside", "best_single_outside"), False),
    ("uniform_over_outside_single",
     "the uniform soup beats the best single adapter held out, which was chosen on held-out text",
     ("soup_uniform", "best_single_outside"), False),
    ("ensemble_in_domain", "the logit ensemble of the best triple beats its soup in-domain",
     ("ensemble_inside", "soup_inside"), True),
    ("ensemble_all_in_domain", "the logit ensemble of all adapters beats the best triple in-domain",
     ("ensemble_all", "soup_inside"), True),
    ("ensemble_held_out", "the logit ensemble of the triple that is best held out beats its soup there",
     ("ensemble_outside", "soup_outside"), False),
)  # fmt: skip
"""Name, claim, (what is lower, than what), in-domain or held out."""


def claims(found: Found, grid: Grid) -> Iterator[Row]:
    """The paper's claims on the domain and on those held out, with verdicts; low and high are `LOW` and `HIGH`."""
    behind = {"soup_low": [f"soup_{LOW:g}"], "soup_high": [f"soup_{HIGH:g}"]}
    for name, rate in (("low", LOW), ("high", HIGH)):
        behind[name] = [f"adapter:{one.name}" for one in by_rate(grid, rate)]  # one a seed
    for name, says, (lower, higher), inside in COMPARISONS:
        domains = found.domains[:1] if inside else found.domains[1:]
        scored = {
            domain: _scored({m: [found.cells[one][domain] for one in behind.get(m, [m])] for m in (lower, higher)})
            for domain in domains
        }
        claim = Claim(
            name, OURS if higher == "best_single_outside" else PAPER, says, {lower: 1.0, higher: -1.0}
        )  # fmt: skip
        yield claim_row(claim, contrast(scored, claim.coefficients), unit="nats a token") | {"domains": domains}


def _scored(cells: Mapping[str, Sequence[Score]]) -> Scored:
    """Cells of one domain, by model and seed."""
    first = next(iter(cells.values()))[0]
    return Scored(np.array(first.tokens), {name: np.array([one.nll for one in some]) for name, some in cells.items()})


# --- mixing curves ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Losses along the line between two adapters A and B: share a -> the cell of a A + (1 - a) B on some passages."""

    pair: Pair
    points: Mapping[float, Score]

    @property
    def ends(self) -> tuple[Score, Score]:
        """The cells of A and of B."""
        return self.points[1.0], self.points[0.0]

    @property
    def middle(self) -> Score:
        """The cell of their mean."""
        return self.points[0.5]


def measure_curves(scorer: Scorer, pairs: Sequence[Pair], texts: Texts, *, points: int, told: Told) -> list[Curve]:
    """A curve for each pair; `points` is odd, so that the middle is one of them."""
    shares = [round(number / (points - 1), 6) for number in range(points)]
    return [
        Curve(pair, dict(zip(shares, scorer.scores([between(pair, a) for a in shares], texts, told), strict=True)))
        for pair in pairs
    ]


def between(pair: Pair, share: float) -> Model:
    """The mixture a A + (1 - a) B of a pair, a the `share`."""
    if share in {0.0, 1.0}:
        return soup([pair.one if share else pair.other])
    return Model((pair.one, pair.other), (share, 1.0 - share), any_init=not pair.same_seed)


def curve_rows(curves: Sequence[Curve]) -> Iterator[Row]:
    """A row for each point, with how far it lies above the line between the ends."""
    for curve in curves:
        one, other = (cell.mean_nll for cell in curve.ends)
        for share, cell in curve.points.items():
            yield {
                "curve": curve.pair.name, "init": curve.pair.init, "same_seed": curve.pair.same_seed, "a": share,
                "nll": cell.mean_nll, "perplexity": cell.perplexity,
                "above_line": cell.mean_nll - share * one - (1 - share) * other,
            }  # fmt: skip


def curve_claims(curves: Sequence[Curve]) -> Iterator[Row]:
    """For each initialisation: whether the middle is below the ends' mean, and lower with one seed than with two."""
    by = {(curve.pair.init, curve.pair.same_seed): curve for curve in curves}
    for init in INITS:
        same, other = by[init, True], by[init, False]
        cells = {
            "same": [same.middle], "other": [other.middle], "one": [same.ends[0]],
            "same_end": [same.ends[1]], "other_end": [other.ends[1]],
        }  # fmt: skip
        domain = {"in-domain": _scored(cells)}
        paper = "AdapterSoup, appendix A.1"
        for claim in (
            Claim(
                f"{init}_same_seed_mixes", paper, f"{init}: the mean of two adapters of one initialisation is better "
                "than they are on average", {"same": 1.0, "one": -0.5, "same_end": -0.5},
            ),
            Claim(
                f"{init}_needs_one_seed", paper, f"{init}: that gain is larger with one initialisation than with two",
                {"same": 1.0, "same_end": -0.5, "other": -1.0, "other_end": 0.5},
            ),
        ):  # fmt: skip
            yield claim_row(claim, contrast(domain, claim.coefficients), unit="nats a token")
