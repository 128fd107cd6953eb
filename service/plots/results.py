"""What a picture of each result shows. Called with values of `registry.spec` by the library and by the command line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from registry.spec import BaselineReport, PerplexityReport, Recipe, Search, Selection, Verification
from service.pictures import Series, curves, heat_map
from service.plots.measured import Measured, differences
from service.plots.panels import Bar, Bars, Intervals, Panel, paneled
from service.plots.picture import Picture

INTERVAL = "90% interval"
MOST_BINS = 12
SHARES = {
    "held_out_accuracy": "held-out text told apart",
    "held_out_posterior": "mean posterior of its own domain",
    "domains_passing": "domains that pass the threshold",
    "training_purity": "purity of the clusters",
    "explained_variance": "variance that the dimensions keep",
}
"""Of a fit's report, what is a share of 1, and how it is called."""


def soup_picture(
    model: str, reason: str, *, abstained: bool, recipe: Recipe | None, selection: Selection | None,
    search: Search | None, verification: Verification | None,
) -> Picture:  # fmt: skip
    """What a cook came to: what is in it, what was held against the base, and the adapters that were weighed."""
    names = {one.digest: one.ref for one in (selection.selected if selection else ())}
    names |= {one.digest: one.ref for one in (search.candidates if search else ())}
    ingredients = sorted(recipe.ingredients if recipe else (), key=lambda one: (-float(one.weight), one.digest))
    weights = [
        Bar(names.get(one.digest, one.digest), float(one.weight), f"{float(one.weight):.3f}") for one in ingredients
    ]
    held = verification is not None and verification.held_out
    where = (
        f"on {verification.passages} {'held-out' if held else 'of the sample’s own'} passages" if verification else ""
    )
    panels: list[Panel] = [
        Bars("What is in it, by weight", weights),
        Intervals(
            f"Mean NLL a token against the base {where}, {INTERVAL}; left is better",
            differences(search, verification, abstained=abstained),
        ),
        Intervals(
            "Adapters that were weighed: what each takes off at once, ± its standard error; filled: it was kept",
            [
                Measured.within(one.ref, one.score, one.standard_error or 0.0, chosen=one.coefficient is not None)
                for one in (search.candidates if search else ())
            ],
        ),
    ]
    title = f"Abstained: {model}" if abstained else model
    return _picture(title, [reason] if reason else [], panels)


def selection_picture(selection: Selection) -> Picture:
    """The ranking of a selection: who was chosen, then who was left out, by score."""
    chosen = [
        Bar(one.ref, one.score or 0.0, _said(one.score, f"weight {float(one.weight):.2f}"))
        for one in selection.selected
    ]
    others = [
        Bar(one.ref, one.score, _said(one.score, ""), chosen=False)
        for one in selection.left_out
        if one.score is not None
    ]
    least = [f"{name.removeprefix('min_')} of at least {value:.3g}" for name, value in selection.thresholds.items()]
    caption = "Score; filled: it was chosen" + (f" ({', '.join(least)})" if least else "")
    title = "Abstained: no adapter fits" if selection.abstained else f"{len(chosen)} chosen of {_looked_at(selection)}"
    return _picture(title, [selection.reason, *selection.warnings], [Bars(caption, [*chosen, *others])])


def _looked_at(selection: Selection) -> int:
    return len(selection.selected) + len(selection.left_out) + sum(selection.more_left_out.values())


def _said(score: float | None, more: str) -> str:
    return ", ".join(filter(None, ("" if score is None else f"{score:.3f}", more)))


def perplexity_picture(model: str, report: PerplexityReport, *, against: str | None) -> Picture:
    """Perplexity of a model, beside `against`, the difference with its interval, and how it varies over texts."""
    bars = [_perplexity(model, report)]
    panels: list[Panel] = [Bars("Perplexity", bars)]
    if report.baseline is not None:
        bars.append(_perplexity(against or "baseline", report.baseline, chosen=False))
        caption = f"Mean NLL a token against {against or 'the baseline'}, {INTERVAL}; left is better"
        panels.append(Intervals(caption, [_difference(model, report.baseline)]))
    panels.append(Bars("Texts by their mean NLL a token", _histogram(report)))
    title = f"{model} on {len(report.texts)} {'text' if len(report.texts) == 1 else 'texts'}, {report.tokens} tokens"
    return _picture(title, [], panels)


def _perplexity(model: str, report: PerplexityReport | BaselineReport, *, chosen: bool = True) -> Bar:
    return Bar(model, report.perplexity, f"{report.perplexity:.2f}", chosen=chosen)


def _difference(model: str, baseline: BaselineReport) -> Measured:
    low, high = baseline.interval or (baseline.difference, baseline.difference)
    return Measured(model, baseline.difference, low, high, chosen=True)


def _histogram(report: PerplexityReport) -> list[Bar]:
    """How many texts have which mean NLL, in bins of one width; texts without a token have none."""
    values = [one.nll / one.tokens for one in report.texts if one.tokens]
    if len(values) < 2 or min(values) == max(values):
        return []
    low, wide = min(values), (max(values) - min(values)) / min(MOST_BINS, math.ceil(math.sqrt(len(values))))
    last = round((max(values) - low) / wide) - 1
    counted = Counter(min(last, int((value - low) / wide)) for value in values)
    return [
        Bar(f"{low + wide * bin_:.2f} to {low + wide * (bin_ + 1):.2f}", counted[bin_], str(counted[bin_]))
        for bin_ in range(last + 1)
    ]


def fit_picture(selector: str, domains: int, report: Mapping[str, Any]) -> Picture:
    """How well a fitted selector tells domains apart: shares on held-out text, and what it has by domain or cluster."""
    shares = [
        Bar(called, report[name], f"{report[name]:.1%}")
        for name, called in SHARES.items()
        if isinstance(report.get(name), int | float)
    ]
    own = [Bar(domain, score, f"{score:.3f}") for domain, score in (report.get("own_scores") or {}).items()]
    clusters = [
        Bar(f"{one['cluster']}: {', '.join(one['domains']) or 'nobody'}", one["units"], str(one["units"]))
        for one in report.get("clusters") or ()
    ]
    threshold = f" (threshold {report['threshold']:.3f})" if isinstance(report.get("threshold"), float) else ""
    panels = [
        Bars("Shares", shares), Bars(f"Mean score of a domain's own text{threshold}", own),
        Bars("Units of the samples by cluster", clusters),
    ]  # fmt: skip
    return _picture(f"{selector} over {domains} domains", list(report.get("warnings") or ()), panels)


def evaluation_picture(title: str, figures: Mapping[str, float]) -> Picture:
    """The figures of an adapter on a task's data; of language modelling with the base model's beside them."""
    if "base_perplexity" in figures:
        texts = int(figures["texts"])
        difference = figures["difference"]
        low, high = figures.get("difference_low", difference), figures.get("difference_high", difference)
        found = Measured("with the adapter", difference, low, high, chosen=True)
        bars = [
            Bar("with the adapter", figures["perplexity"], f"{figures['perplexity']:.2f}"),
            Bar("the base model", figures["base_perplexity"], f"{figures['base_perplexity']:.2f}", chosen=False),
        ]
        caption = f"Mean NLL a token against the base, {INTERVAL}; left is better"
        return _picture(title, [f"{texts} texts"], [Bars("Perplexity", bars), Intervals(caption, [found])])
    every = [
        Bar(name.replace("_", " "), value, f"{value:.4g}")
        for name, value in figures.items()
        if isinstance(value, float)
    ]
    return _picture(title, [], [Bars("Rates are shares of 1, losses in nats", every)])


def training_picture(title: str, record: Mapping[str, Any]) -> Picture:
    """Training and validation loss over steps, as a training's record has them."""
    histories: dict[str, Sequence[Sequence[float]]] = {
        "validation": record["valid_history"], "training": record["train_history"],
    }  # fmt: skip
    series = [Series(name, [(step, loss) for step, loss in points]) for name, points in histories.items() if points]
    return Picture(title, curves(title, series, across="step", up="mean loss in nats"))


def strategies_picture(
    strategies: Sequence[str], domains: Sequence[str], taken_off: Mapping[tuple[str, str], float]
) -> Picture:
    """What strategies take off the base's mean NLL a token, by (strategy, domain), as a heat map."""
    title = "What each strategy takes off the base's mean NLL"
    drawn = heat_map(
        title, rows=strategies, columns=domains, values=taken_off, left="strategy",
        below="domain; blue is better than the base, orange worse", cell=(84, 34),
    )  # fmt: skip
    return Picture(title, drawn)


def _picture(title: str, sentences: Sequence[str], panels: Sequence[Panel]) -> Picture:
    return Picture(title, paneled(title, sentences, panels))
