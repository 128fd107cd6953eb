"""What the pages about the papers' claims quote from a results file: claims, models, rates, and pictures with tables.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`, and by `docs.generate` for the pictures, which
are written beside the pages where there is a result to draw.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.markdown import table
from plots.charts import CategoryAxis, Series, heat_map, lines
from plots.style import to_svg

Result = Mapping[str, Any]
Row = Mapping[str, Any]
FOLDER = Path("docs") / "explanation" / "pictures"
"""From the project's root; the pages that show them are in the folder above."""


def _rows(result: Result, key: str) -> list[Row]:
    return [row for row in result["rows"] if key in row]


def by(rows: Sequence[Row], outer: str, inner: str) -> dict[Any, dict[Any, Row]]:
    """Rows by two of their values, both in the order in which they first come."""
    found: dict[Any, dict[Any, Row]] = {}
    for row in rows:
        found.setdefault(row[outer], {})[row[inner]] = row
    return found


def _series(rows: Sequence[Row], *, name: str, x: str, y: str) -> list[Series]:
    """A curve for each value of `name`, through its rows' (x, y)."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(row[name], []).append((row[x], row[y]))
    return [Series(label, some) for label, some in points.items()]


# --- claims and models ------------------------------------------------------------------------------


def claims(result: Result) -> list[str]:
    """Each claim with the paper's figure, ours, and the verdict."""
    head = ("the paper", "here", "difference", "smallest that would be found", "verdict")
    rows = [
        (str(row["paper"]), str(row["says"]), _difference(row), _size(row), f"*{row['verdict']}*")
        for row in _rows(result, "claim")
    ]
    units = sorted({str(row["unit"]) for row in _rows(result, "claim") if row["unit"]})
    note = (
        f"Difference ± standard error ({' or '.join(units)}); below zero is what the claim says. A verdict is beyond "
        "two standard errors; the next column is what a true effect would have to be to be found four times in five."
    )
    if any(_over_passages(row) for row in _rows(result, "claim")):
        note += f" {ALONE}: one training on each side, and how much another one would differ is not in the error."
    return [*table(head, rows), "", note]


ALONE = "† Over passages alone"


def _over_passages(row: Row) -> bool:
    """Whether a claim is about one training on each side, so that no spread over trainings is in its error."""
    return "standard_error_seeds" in row and row["standard_error_seeds"] is None


def _difference(row: Row) -> str:
    note = str(row.get("note", ""))
    if row["difference"] is None:
        return note
    error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.4f}"
    mark = " †" if _over_passages(row) else ""
    return f"{row['difference']:+.4f}{error}{mark}" + (f" ({note})" if note else "")


def _size(row: Row) -> str:
    if row["minimum_detectable"] is None:
        return ""
    return f"{row['minimum_detectable']:.4f}" + (" †" if _over_passages(row) else "")


def methods(result: Result) -> dict[str, dict[str, Row]]:
    """Method -> domain -> row; single adapters are not methods."""
    return by([row for row in _rows(result, "method") if row["method"] not in {None, "adapter"}], "method", "domain")


def models(result: Result) -> list[str]:
    """Each variant with parameters, cost, and perplexity in every domain."""
    found = methods(result)
    domains = list(next(iter(found.values())))
    head = ("model", "parameters trained", "relative inference cost", "learning rate", *domains)
    seeds = any(row.get("seeds", 1) > 1 for rows in found.values() for row in rows.values())
    over, error = (", mean over seeds", "") if seeds else ("", " over passages")
    return [
        *table(head, [_model(rows, domains) for rows in found.values()]),
        "",
        f"Perplexity on test passages{over}; difference of mean NLL to the base ± its standard error{error}.",
    ]


def _model(rows: Mapping[str, Row], domains: Sequence[str]) -> list[str]:
    first = next(iter(rows.values()))
    known = next((row for row in rows.values() if "parameters_trained" in row), None)
    size, cost = ("", "") if known is None else (f"{known['parameters_trained']:,}", f"{known['relative_cost']:.3f}")
    return [
        str(first["label"]),
        size,
        cost,
        _rates(first),
        *(_quality(rows[domain]) for domain in domains),
    ]


def _rates(row: Row) -> str:
    """The learning rate of a model, or those of a soup's members, each with how many have it."""
    if "learning_rates" in row:
        counted: Counter[float] = Counter(row["learning_rates"])
        return ", ".join(f"{count} x {rate:g}" for rate, count in counted.items())
    return "" if row.get("learning_rate") is None else f"{row['learning_rate']:g}"


def _quality(row: Row) -> str:
    if "diverged" in row:
        return "diverged"
    if not row["parameters_trained"]:
        return f"{row['perplexity']:.2f}"
    return f"{row['perplexity']:.2f} ({row['difference']:+.4f} ± {row['standard_error']:.4f})"


def rates(result: Result) -> list[str]:
    """The learning rates that were tried on validation text."""
    found = _rows(result, "rate_of")
    rows = [
        (
            str(row["rate_of"]), f"{row['learning_rate']:g}",
            "diverged" if row["valid_nll"] is None else f"{row['valid_nll']:.4f}",
            _choice(row, [one["learning_rate"] for one in found if one["rate_of"] == row["rate_of"]]),
        )
        for row in found
    ]  # fmt: skip
    return table(("family", "learning rate", "validation loss, mean of the domains", ""), rows)


def _choice(row: Row, listed: Sequence[float]) -> str:
    """`chosen`, and whether it is an end of its family's list: a better one may lie beyond."""
    if not row["chosen"]:
        return ""
    ends = {min(listed): "the lowest", max(listed): "the highest"}
    end = ends.get(row["learning_rate"])
    return "chosen" if end is None else f"chosen, {end} of its list"


# --- pictures ---------------------------------------------------------------------------------------


def spans(result: Result) -> list[str]:
    """What is lost without the adapters of a span, in each domain."""
    found = _rows(result, "span")
    domains = list(dict.fromkeys(row["domain"] for row in found))
    lost = by(found, "span", "domain")
    rows = [[span, *(_difference(row[domain]) for domain in domains)] for span, row in lost.items()]
    image = _image(result, "spans", "Loss without the adapters of a span of layers")
    return [*image, *table(("layers", *domains), rows)]


def draw_spans(result: Result) -> str:
    """Figure 6 of Houlsby et al., left: first layer down, last layer across, mean of the domains."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in _rows(result, "span"):
        first, last = row["span"].split("-")
        values.setdefault((first, last), []).append(row["difference"])
    names = sorted({name for pair in values for name in pair}, key=int)
    means = {pair: sum(some) / len(some) for pair, some in values.items()}
    plot = heat_map(
        "NLL lost without the adapters of a span of layers",
        means,
        rows=CategoryAxis("first layer of the span", names),
        columns=CategoryAxis("last layer of the span (nats a token, mean of domains)", names),
    )
    return to_svg(plot)


def _scales(result: Result) -> list[Row]:
    """Houlsby adapters of one size by the scale of their start; the usual one is 1e-2."""
    started = [row for row in _rows(result, "init_std") if "nll" in row]
    sizes = {row["parameters_trained"] for row in started}
    usual = [
        {**row, "init_std": 1e-2}
        for row in _rows(result, "method")
        if row["method"].startswith("houlsby_") and row.get("parameters_trained") in sizes
    ]
    return sorted([*started, *usual], key=lambda row: (row["init_std"], row["domain"]))


def scales(result: Result) -> list[str]:
    """Loss by the standard deviation of the initial projections."""
    rows = [(f"{row['init_std']:g}", row["domain"], f"{row['nll']:.4f}", _difference(row)) for row in _scales(result)]
    head = ("standard deviation", "domain", "NLL", "difference to the base")
    return [*_image(result, "scales", "Loss by the scale of the start"), *table(head, rows)]


def draw_scales(result: Result) -> str:
    """Figure 6 of Houlsby et al., right."""
    series = _series(_scales(result), name="domain", x="init_std", y="nll")
    return to_svg(lines(
        "NLL by the scale of the start", series, x_label="standard deviation of initial projections",
        y_label="nats a token", logarithmic=True,
    ))  # fmt: skip


def convergence(result: Result) -> list[str]:
    """Validation loss by step, dense and Large-Sparse."""
    found = _rows(result, "curve")
    labels = {row["curve"]: row["label"] for row in found}
    steps = by(found, "step", "curve").items()
    rows = [[str(step), *(f"{at[name]['valid_nll']:.4f}" for name in labels)] for step, at in steps]
    return [*_image(result, "convergence", "Validation loss by step"), *table(("step", *labels.values()), rows)]


def draw_convergence(result: Result) -> str:
    """The convergence of SparseAdapter's Large-Sparse."""
    short = [{**row, "label": row["label"].partition(",")[0]} for row in _rows(result, "curve")]
    series = _series(short, name="label", x="step", y="valid_nll")
    return to_svg(lines("Validation loss, mean of domains and seeds", series, x_label="step", y_label="nats a token"))


# --- the single-domain experiment -------------------------------------------------------------------


def mixing(result: Result) -> list[str]:
    """NLL along the lines between two adapters: a row for each share, a column for each pair."""
    found = _rows(result, "above_line")
    names = list(dict.fromkeys(row["curve"] for row in found))
    rows = [
        [f"{share:g}", *(f"{pairs[name]['nll']:.4f} ({pairs[name]['above_line']:+.4f})" for name in names)]
        for share, pairs in sorted(by(found, "a", "curve").items())
    ]
    return [
        *_image(result, "mixing", "Loss between two adapters, above the line between them"),
        *table(("a", *names), rows),
        "",
        "NLL of a A + (1 - a) B in nats a token; in brackets, how far above the straight line between A and B.",
    ]


def draw_mixing(result: Result) -> str:
    """How far L(a A + (1 - a) B) lies above the line between its ends."""
    series = _series(_rows(result, "above_line"), name="curve", x="a", y="above_line")
    return to_svg(
        lines("Loss above the line between two adapters", series, x_label="share a of A", y_label="nats a token")
    )


def _image(result: Result, view: str, said: str) -> list[str]:
    return [f"![{said}]({FOLDER.name}/{result['name']}_{view}.svg)", ""]


VIEWS: dict[str, Callable[[Result], list[str]]] = {
    "claims": claims, "models": models, "rates": rates, "spans": spans, "scales": scales, "convergence": convergence,
    "mixing": mixing,
}  # fmt: skip
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""
PICTURES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "lm_adapters_spans": ("lm_adapters", draw_spans),
    "lm_adapters_scales": ("lm_adapters", draw_scales),
    "lm_adapters_convergence": ("lm_adapters", draw_convergence),
    "single_domain_mixing": ("single_domain", draw_mixing),
}
"""File in `FOLDER` -> the result it is drawn from, and how."""


def pictures(results: Path) -> dict[Path, str]:
    """Every picture whose result is there, by its path from the project's root."""
    return {
        FOLDER / f"{name}.svg": draw(json.loads(path.read_text(encoding="utf-8")))
        for name, (result, draw) in PICTURES.items()
        if (path := results / f"{result}.json").is_file()
    }
