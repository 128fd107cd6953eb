"""Figures of results: cooks, selections, scores, fits, evaluations, trainings and comparisons of strategies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plots.charts import Bar, CategoryAxis, Interval, Panel, Series, heat_map, lines, panels
from plots.style import LIGHT, Plot, Theme
from registry.spec import BaselineReport, PerplexityReport, Recipe, Search, Selection, Verification
from registry.spec.score import relative_change
from registry.spec.search import WAYS

CONFIDENCE = "90% interval"
AGAINST_BASE = f"Mean NLL a token against the base, {CONFIDENCE}; left is better"
MAX_BINS = 12
FIT_SHARES = {
    "held_out_accuracy": "held-out text told apart",
    "held_out_posterior": "mean posterior of its own domain",
    "domains_passing": "domains that pass the threshold",
    "training_purity": "purity of the clusters",
    "explained_variance": "variance that the dimensions keep",
}
"""The fractions of a fit's report, and their labels."""


def soup_plot(
    model: str,
    reason: str,
    *,
    abstained: bool,
    recipe: Recipe | None,
    selection: Selection | None,
    search: Search | None,
    verification: Verification | None,
    refs: Mapping[str, str] | None = None,
) -> Plot:
    """The result of a cook: ingredients, differences against the base, and the gains of the candidates.

    `refs` are names of ingredients by digest, beside those of the selection and the search.
    """
    candidates = search.candidates if search else ()
    names = {**(refs or {})} | {adapter.digest: adapter.ref for adapter in (selection.selected if selection else ())}
    names |= {candidate.digest: candidate.ref for candidate in candidates}
    ingredients = sorted(recipe.ingredients if recipe else (), key=lambda item: (-float(item.weight), item.digest))
    weights = [
        Bar(names.get(item.digest, item.digest), float(item.weight), f"{float(item.weight):.3f}")
        for item in ingredients
    ]
    passages = ""
    if verification:
        kind = "held-out passages" if verification.held_out else "passages of the sample itself"
        passages = f" on {verification.passages} {kind}"
    weighed = [
        Interval.around(
            candidate.ref, candidate.score, candidate.standard_error or 0.0, chosen=candidate.coefficient is not None
        )
        for candidate in candidates
    ]
    return panels(
        f"Abstained: {model}" if abstained else model,
        [reason] if reason else [],
        [
            Panel("Ingredients by weight", weights),
            Panel(
                f"Mean NLL a token against the base{passages}, {CONFIDENCE}; left is better",
                base_differences(search, verification, abstained=abstained),
            ),
            Panel("Gain of each candidate from the screen, ± its standard error; filled: in the weighed soup", weighed),
        ],
    )


def base_differences(search: Search | None, check: Verification | None, *, abstained: bool) -> list[Interval]:
    """The measured differences of mean NLL against the base, in nats per token with their intervals."""
    differences: list[Interval] = []
    if search is not None and search.held_out > 1:
        errors = _errors_in_interval(check)
        for trial in search.trials:
            is_first = not any(row.chosen for row in differences)  # training that keeps its start repeats its score
            chosen = is_first and check is not None and trial.difference == check.difference
            differences.append(
                Interval.around(WAYS[trial.way], trial.difference, errors * trial.standard_error, chosen=chosen)
            )
        for label, control in (
            (f"Best adapter: {search.single.ref}" if search.single else "", search.single),
            ("Random adapters (control)", search.noise),
        ):
            if control is not None:
                differences.append(Interval.around(label, control.difference, errors * control.standard_error))
    if check is not None and not any(row.chosen for row in differences) and check.interval is not None:
        label = "The best candidate" if abstained else "The soup"
        differences.append(Interval(label, check.difference, *check.interval, chosen=True))
    return differences


def perplexity_changes(search: Search | None, check: Verification | None, *, abstained: bool) -> list[Interval]:
    """The change of perplexity against the base in percent: of the verified soup, the best adapter and the control."""
    verified = "Best candidate" if abstained else "This model"
    changes = [
        Interval(
            verified if row.chosen else row.label,
            percent(row.value),
            percent(row.low),
            percent(row.high),
            row.chosen,
            f"{percent(row.value):+.1f}% ({percent(row.low):+.1f} to {percent(row.high):+.1f})",
        )
        for row in base_differences(search, check, abstained=abstained)
        if row.chosen or row.label not in WAYS.values()
    ]
    return [*changes, Interval("Base model", 0.0, 0.0, 0.0, text="0%")] if changes else []


def percent(difference: float) -> float:
    """The change of perplexity in percent that a difference of mean NLL is."""
    return 100 * relative_change(difference)


def _errors_in_interval(check: Verification | None) -> float:
    """Half the width of the verification's interval in standard errors, used for all trials on its passages."""
    if check is None or check.interval is None or not check.standard_error:
        return 0.0
    return (check.interval[1] - check.difference) / check.standard_error


def selection_plot(selection: Selection) -> Plot:
    """The scores of a selection: the selected adapters, then the others."""
    chosen = [
        Bar(adapter.ref, adapter.score or 0.0, _score_text(adapter.score, f"weight {float(adapter.weight):.2f}"))
        for adapter in selection.selected
    ]
    excluded = [
        Bar(adapter.ref, adapter.score, _score_text(adapter.score), chosen=False)
        for adapter in selection.left_out
        if adapter.score is not None
    ]
    thresholds = [
        f"{name.removeprefix('min_')} of at least {value:.3g}" for name, value in selection.thresholds.items()
    ]
    caption = "Score; filled: chosen" + (f" ({', '.join(thresholds)})" if thresholds else "")
    total = len(chosen) + len(selection.left_out) + sum(selection.more_left_out.values())
    title = "Abstained: no adapter fits" if selection.abstained else f"{len(chosen)} chosen of {total}"
    return panels(title, [selection.reason, *selection.warnings], [Panel(caption, [*chosen, *excluded])])


def _score_text(score: float | None, more: str = "") -> str:
    return ", ".join(filter(None, ("" if score is None else f"{score:.3f}", more)))


def perplexity_plot(model: str, report: PerplexityReport, *, against: str | None) -> Plot:
    """The perplexity of a model, of the model `against` with the difference, and a histogram over the texts."""
    bars = [_perplexity_bar(model, report.perplexity)]
    rows = [Panel("Perplexity", bars)]
    if report.baseline is not None:
        bars.append(_perplexity_bar(against or "baseline", report.baseline.perplexity, chosen=False))
        caption = f"Mean NLL a token against {against or 'the baseline'}, {CONFIDENCE}; left is better"
        rows.append(Panel(caption, [_baseline_interval(model, report.baseline)]))
    rows.append(Panel("Texts by their mean NLL a token", _histogram(report)))
    texts = f"{len(report.texts)} {'text' if len(report.texts) == 1 else 'texts'}"
    return panels(f"{model} on {texts}, {report.tokens} tokens", [], rows)


def _perplexity_bar(label: str, perplexity: float, *, chosen: bool = True) -> Bar:
    return Bar(label, perplexity, f"{perplexity:.2f}", chosen=chosen)


def _baseline_interval(model: str, baseline: BaselineReport) -> Interval:
    low, high = baseline.interval or (baseline.difference, baseline.difference)
    return Interval(model, baseline.difference, low, high, chosen=True)


def _histogram(report: PerplexityReport) -> list[Bar]:
    """The number of texts by mean NLL, in bins of equal width; texts without tokens are skipped."""
    values = [text.nll / text.tokens for text in report.texts if text.tokens]
    if len(values) < 2 or min(values) == max(values):
        return []
    bins = min(MAX_BINS, math.ceil(math.sqrt(len(values))))
    low, width = min(values), (max(values) - min(values)) / bins
    counts = Counter(min(bins - 1, int((value - low) / width)) for value in values)
    return [
        Bar(f"{low + width * number:.2f} to {low + width * (number + 1):.2f}", counts[number], str(counts[number]))
        for number in range(bins)
    ]


def fit_plot(selector: str, domains: int, report: Mapping[str, Any]) -> Plot:
    """The accuracy of a fitted selector, from its report, and its scores by domain or cluster."""
    shares = [
        Bar(label, report[name], f"{report[name]:.1%}")
        for name, label in FIT_SHARES.items()
        if isinstance(report.get(name), int | float)
    ]
    scores = [Bar(domain, score, f"{score:.3f}") for domain, score in (report.get("own_scores") or {}).items()]
    clusters = [
        Bar(
            f"{cluster['cluster']}: {', '.join(cluster['domains']) or 'no domain'}",
            cluster["units"],
            str(cluster["units"]),
        )
        for cluster in report.get("clusters") or ()
    ]
    threshold = f" (threshold {report['threshold']:.3f})" if isinstance(report.get("threshold"), float) else ""
    rows = [
        Panel("Shares", shares),
        Panel(f"Mean score of a domain's own text{threshold}", scores),
        Panel("Units of the samples by cluster", clusters),
    ]
    return panels(f"{selector} over {domains} domains", list(report.get("warnings") or ()), rows)


def evaluation_plot(title: str, figures: Mapping[str, float]) -> Plot:
    """The metrics of an adapter on a task's data; for language modelling also those of the base model."""
    if "base_perplexity" not in figures:
        rates = [
            Bar(name.replace("_", " "), value, f"{value:.4g}")
            for name, value in figures.items()
            if isinstance(value, float)
        ]
        return panels(title, [], [Panel("Rates as fractions, losses in nats", rates)])
    difference = figures["difference"]
    low, high = figures.get("difference_low", difference), figures.get("difference_high", difference)
    bars = [
        _perplexity_bar("with the adapter", figures["perplexity"]),
        _perplexity_bar("the base model", figures["base_perplexity"], chosen=False),
    ]
    interval = Interval("with the adapter", difference, low, high, chosen=True)
    texts = f"{int(figures['texts'])} texts"
    return panels(title, [texts], [Panel("Perplexity", bars), Panel(AGAINST_BASE, [interval])])


def training_plot(title: str, record: Mapping[str, Any]) -> Plot:
    """The losses of a training by step, from its record."""
    return losses_plot(
        title,
        by="step",
        training=record["train_history"],
        held_out=record["valid_history"],
        best=record.get("best_step"),
    )


def losses_plot(
    title: str,
    *,
    by: str,
    training: Sequence[Sequence[float]],
    held_out: Sequence[Sequence[float]],
    best: int | None,
    theme: Theme = LIGHT,
) -> Plot:
    """Curves of mean loss by step or pass; `best` is the step whose state was kept."""
    curves = {"held out": held_out, "in training": training}
    series = [
        Series(name, [(step, loss) for step, loss in curve], best if name == "held out" else None)
        for name, curve in curves.items()
        if curve
    ]
    return lines(title, series, x_label=by, y_label="mean loss in nats", theme=theme)


def strategies_plot(strategies: Sequence[str], domains: Sequence[str], gains: Mapping[tuple[str, str], float]) -> Plot:
    """A heat map of how much strategies lower the base's mean NLL, by (strategy, domain)."""
    return heat_map(
        "Decrease of mean NLL a token against the base",
        gains,
        rows=CategoryAxis("strategy", strategies),
        columns=CategoryAxis("domain; blue is better than the base, orange worse", domains),
    )
