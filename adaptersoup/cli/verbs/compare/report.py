"""Output of comparisons: tables for a terminal, CSV, Markdown, and a plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adaptersoup.cli.output import data_width
from adaptersoup.tables import columns
from registry.spec.score import relative_change

if TYPE_CHECKING:
    from plots.style import Plot


Json = dict[str, Any]

CSV = (
    "domain",
    "draw",
    "strategy",
    "model",
    "abstained",
    "perplexity",
    "mean_nll",
    "difference",
    "standard_error",
    "ingredients",
    "error",
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One comparison as aligned text: the result of each strategy, then the ingredients of each model."""
    figures = columns(
        ("strategy", "perplexity", "difference", "model"), [_figures(row) for row in rows], within=data_width()
    )
    ingredients = {row["model"]: _ingredients(row) for row in rows if row.get("summary") and not row["abstained"]}
    if not ingredients:
        return figures
    return figures + "\n\n" + columns(("model", "ingredients"), list(ingredients.items()), within=data_width())


def _figures(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """A strategy, its perplexity and difference to the base, and its model."""
    if row.get("error"):
        return row["strategy"], "-", "-", "failed"
    difference = "" if row["strategy"] == "base" else f"{row['difference']:+.4f} ± {row['standard_error']:.4f}"
    model = "abstained: the base" if row["abstained"] else row["model"]
    return row["strategy"], f"{row['perplexity']:.2f}", difference, model


def _ingredients(row: dict[str, Any]) -> str:
    return str(row["summary"]) + (" (concat)" if row["mixing"] == "concat" and len(row["ingredients"]) > 1 else "")


def means(comparisons: Sequence[Json]) -> list[Json]:
    """Each strategy's mean difference to the base, and its counts of better, abstained and failed draws.

    `by_domain` has the mean over a domain's draws; `difference` is the mean of these over the domains.
    """
    names = [row["strategy"] for row in comparisons[0]["rows"] if row["strategy"] != "base"]
    return [_mean(name, comparisons) for name in names]


def _mean(strategy: str, comparisons: Sequence[Json]) -> Json:
    differences: dict[str, list[float]] = {}
    counts = {"better": 0, "abstained": 0, "failed": 0}
    for comparison in comparisons:
        row = next(row for row in comparison["rows"] if row["strategy"] == strategy)
        if row.get("error"):
            counts["failed"] += 1
            continue
        differences.setdefault(comparison["domain"], []).append(row["difference"])
        counts["better"] += row["difference"] < 0
        counts["abstained"] += bool(row["abstained"])
    by_domain = {domain: sum(values) / len(values) for domain, values in differences.items()}
    mean = sum(by_domain.values()) / len(by_domain) if by_domain else None
    return {"strategy": strategy, "difference": mean, "by_domain": by_domain, **counts}


def summary(comparisons: Sequence[Json]) -> str:
    """A table of several comparisons, one row a strategy."""
    rows = [
        (
            row["strategy"],
            _signed(row["difference"]),
            _percent(row["difference"]),
            row["better"],
            row["abstained"],
            row["failed"],
        )
        for row in means(comparisons)
    ]
    header = ("strategy", "difference", "perplexity", f"better, of {len(comparisons)}", "abstained", "failed")
    return columns(header, rows, within=data_width())


def markdown(comparisons: Sequence[Json]) -> str:
    """A Markdown table of mean differences to the base, strategies by domains, with the mean of all domains last."""
    domains = _domains(comparisons)
    lines = [["strategy", *domains, "all"], ["---", *["---:"] * (len(domains) + 1)]]
    for row in means(comparisons):
        values = [row["by_domain"].get(domain) for domain in domains]
        lines.append([row["strategy"], *map(_signed, values), _signed(row["difference"])])
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def csv_text(comparisons: Sequence[Json]) -> str:
    """CSV with a line for each strategy of each draw, the base among them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        for row in comparison["rows"]:
            writer.writerow(
                {
                    **row,
                    "domain": comparison["domain"],
                    "draw": comparison["draw"],
                    "ingredients": row.get("summary"),
                    "error": (row.get("error") or {}).get("message"),
                }
            )
    return out.getvalue()


def strategies_plot_of(comparisons: Sequence[Json]) -> Plot:
    """A heat map of strategies by domains: the reduction of the base's mean NLL per token."""
    from plots.results import strategies_plot

    rows = means(comparisons)
    values = {(row["strategy"], domain): -value for row in rows for domain, value in row["by_domain"].items()}
    return strategies_plot([row["strategy"] for row in rows], _domains(comparisons), values)


def _domains(comparisons: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(comparison["domain"] for comparison in comparisons))


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _percent(value: float | None) -> str:
    """A difference of mean NLL as the relative change of perplexity, in percent."""
    return "-" if value is None else f"{100 * relative_change(value):+.1f} %"
