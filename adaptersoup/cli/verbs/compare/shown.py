"""A comparison for readers: tables for a terminal, CSV, Markdown, and a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adaptersoup.cli.output import data_width
from adaptersoup.tables import columns

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
    """The comparison as aligned text: what each strategy came to, then what each of the models is made of."""
    figures = columns(
        ("strategy", "perplexity", "difference", "model"), [_figures(row) for row in rows], within=data_width()
    )
    made = {row["model"]: _made_of(row) for row in rows if row.get("summary") and not row["abstained"]}
    if not made:
        return figures
    return figures + "\n\n" + columns(("model", "ingredients"), list(made.items()), within=data_width())


def _figures(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """A strategy, its perplexity and difference to the base, and the model it came to."""
    if row.get("error"):
        return row["strategy"], "-", "-", "failed"
    against = "" if row["strategy"] == "base" else f"{row['difference']:+.4f} ± {row['standard_error']:.4f}"
    model = "abstained: the base" if row["abstained"] else row["model"]
    return row["strategy"], f"{row['perplexity']:.2f}", against, model


def _made_of(row: dict[str, Any]) -> str:
    return str(row["summary"]) + (" (concat)" if row["mixing"] == "concat" and len(row["ingredients"]) > 1 else "")


def means(found: Sequence[Json]) -> list[Json]:
    """For each strategy its mean difference to the base over all draws of all domains, and how it went.

    `by_domain` has the mean over a domain's draws; the mean of all is that of the domains, each counting once.
    """
    named = [row["strategy"] for row in found[0]["rows"] if row["strategy"] != "base"]
    return [_mean(name, found) for name in named]


def _mean(strategy: str, found: Sequence[Json]) -> Json:
    by_domain: dict[str, list[float]] = {}
    counted = {"better": 0, "abstained": 0, "failed": 0}
    for one in found:
        row = next(row for row in one["rows"] if row["strategy"] == strategy)
        if row.get("error"):
            counted["failed"] += 1
            continue
        by_domain.setdefault(one["domain"], []).append(row["difference"])
        counted["better"] += row["difference"] < 0
        counted["abstained"] += bool(row["abstained"])
    each = {domain: sum(values) / len(values) for domain, values in by_domain.items()}
    return {"strategy": strategy, "difference": _average(list(each.values())), "by_domain": each, **counted}


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def summary(found: Sequence[Json]) -> str:
    """The table of several samples: a row a strategy."""
    rows = [
        (
            one["strategy"],
            _signed(one["difference"]),
            _percent(one["difference"]),
            one["better"],
            one["abstained"],
            one["failed"],
        )
        for one in means(found)
    ]
    header = ("strategy", "difference", "perplexity", f"better, of {len(found)}", "abstained", "failed")
    return columns(header, rows, within=data_width())


def markdown(found: Sequence[Json]) -> str:
    """A table of strategies and domains: mean differences to the base, with all domains' last."""
    domains = list(dict.fromkeys(one["domain"] for one in found))
    lines = [["strategy", *domains, "all"], ["---", *["---:"] * (len(domains) + 1)]]
    for one in means(found):
        values = [one["by_domain"].get(domain) for domain in domains]
        lines.append([one["strategy"], *map(_signed, values), _signed(one["difference"])])
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def csv_text(found: Sequence[Json]) -> str:
    """A line for each strategy of each draw, the base among them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for one in found:
        for row in one["rows"]:
            said = {"ingredients": row.get("summary"), "error": (row.get("error") or {}).get("message")}
            writer.writerow({**row, "domain": one["domain"], "draw": one["draw"], **said})
    return out.getvalue()


def strategies_plot_of(found: Sequence[Json]) -> Plot:
    """A heat map of strategies and domains: what each takes off the base's mean NLL per token."""
    from plots.results import strategies_plot

    rows = means(found)
    values = {(one["strategy"], domain): -value for one in rows for domain, value in one["by_domain"].items()}
    domains = list(dict.fromkeys(one["domain"] for one in found))
    return strategies_plot([one["strategy"] for one in rows], domains, values)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _percent(value: float | None) -> str:
    """A difference of mean NLL as the change of perplexity."""
    return "-" if value is None else f"{100 * (math.exp(value) - 1):+.1f} %"
