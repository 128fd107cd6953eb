"""Numbers of the documentation, which all come from files of benchmarks/results.

A page holds `<!-- figures:NAME -->` and `<!-- /figures -->`; `docs.generate` fills the block from
benchmarks/results/NAME.json (`benchmarks.report`). `NAME:run` are the figures as they are in the file, and `NAME:tales`
the strategies of the tutorial on its domain. The views of `docs.soups` compare ways to make a model. `summary:NAME` is
a table of `docs.summaries`, `papers:NAME` one of claims with verdicts (`docs.papers`), and `papers` the number of
claims by verdict; these may read several files. `costs` is what the server estimates for efforts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs import papers, soups, summaries
from docs.markdown import number, table

MARK = re.compile(
    r"(<!-- figures:(?P<name>[a-z0-9_]+)(?::(?P<view>[a-z0-9_]+))? -->\n).*?(<!-- /figures -->)", re.DOTALL
)
Result = Mapping[str, Any]


def fill(text: str, folder: Path) -> str:
    """`text` with every block filled from the results in `folder`."""
    return MARK.sub(lambda match: match[1] + block(folder, match["name"], match["view"]) + "\n" + match[4], text)


def block(folder: Path, name: str, view: str | None = None) -> str:
    """The text between two marks."""
    if name == "costs":
        return "\n" + "\n".join(soups.costs()) + "\n"
    if name in ("summary", "papers"):
        several = summaries.lines(folder, view or "") if name == "summary" else papers.lines(folder, view)
        return "\n" + "\n".join(several) + "\n"
    path = folder / f"{name}.json"
    if not path.is_file():
        return f"\nNot measured yet: there is no `benchmarks/results/{name}.json`.\n"
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    default = _comparison if _compares(result) else _plain
    views = {"tales": _tales, "run": _plain}
    lines = soups.VIEWS[view](result, name) if view in soups.VIEWS else views.get(view or "", default)(result)
    return "\n" + "\n".join([*lines, "", *summaries.sources({name: result})]) + "\n"


def _compares(result: Result) -> bool:
    """Return True if the rows of the result are methods on domains."""
    return any({"method", "domain", "perplexity"} <= set(row) for row in result.get("rows", ()))


# --- a comparison of methods ------------------------------------------------------------------------


def _comparison(result: Result) -> list[str]:
    means = ("perplexity, geometric mean", "arithmetic mean", "relative to the control")
    head = ("method", *means, "better than the base", "worse", "is the base")
    methods = _methods(result)
    control = next((name for name in methods if name.startswith("control")), None)
    table_rows = []
    for name, rows in methods.items():
        cells = list(rows.values())
        arithmetic = math.fsum(row["perplexity"] for row in cells) / len(cells)
        ratio = _geometric(rows) / _geometric(methods[control]) if control else 1.0
        gain = f"{100 * (ratio - 1):+.1f} %" if control not in (None, name) else ""
        same = sum(bool(row.get("abstained")) or row["difference"] == 0 for row in cells)
        better, worse = (
            sum(sign * row["difference"] > 2 * row["standard_error"] and row["difference"] != 0 for row in cells)
            for sign in (-1, 1)
        )
        counts = (str(count) for count in (better, worse, same))
        table_rows.append((_label(cells[0]), f"{_geometric(rows):.2f}", f"{arithmetic:.2f}", gain, *counts))
    return [*table(head, table_rows), "", *_comparison_notes(result)]


def _methods(result: Result) -> dict[str, dict[str, Result]]:
    """Rows by method and domain; single adapters are not methods."""
    methods: dict[str, dict[str, Result]] = {}
    for row in result["rows"]:
        if row.get("method") not in {None, "adapter"}:
            methods.setdefault(row["method"], {})[row["domain"]] = row
    return methods


def _geometric(rows: Mapping[str, Result]) -> float:
    """The geometric mean of one method's perplexities."""
    return math.exp(math.fsum(math.log(row["perplexity"]) for row in rows.values()) / len(rows))


TALES = "fairy_tales"
"""The tutorial's domain."""
COOKED = {
    "base_model": "base model",
    "single_similarity": "single, cosine",
    "effort_instant": "effort instant",
    "the_service_verified": "effort tune",
}
"""Methods of the demo as `soup compare` names the strategies."""


def _tales(result: Result) -> list[str]:
    """The adapters and perplexities of some methods on the tutorial's domain."""
    rows = {method: by_domain[TALES] for method, by_domain in _methods(result).items() if TALES in by_domain}
    cells = [
        (label, str(rows[method].get("taken") or ""), f"{rows[method]['perplexity']:.2f}")
        for method, label in COOKED.items()
        if method in rows
    ]
    return table(("strategy", "adapters", "perplexity"), cells)


def _comparison_notes(result: Result) -> Iterator[str]:
    cells = next(iter(_methods(result).values()))
    passages = sorted({int(row["passages"]) for row in cells.values()})
    counted = f"{passages[0]}" if len(passages) == 1 else f"{passages[0]} to {passages[-1]}"
    yield (
        f"{len(cells)} novel domains ({', '.join(cells)}), {counted} test passages each. Better and worse count "
        "domains whose difference of mean NLL to the base is beyond two paired standard errors. Passages of one "
        "document are not independent, so the true errors may be larger."
    )


def _label(row: Result) -> str:
    return str(row.get("label") or str(row["method"]).replace("_", " "))


# --- any other result -------------------------------------------------------------------------------


def _plain(result: Result) -> list[str]:
    rows = [
        (
            name.replace("_", " "),
            number(figure["value"]),
            str(figure.get("unit") or ""),
            number(figure.get("goal")),
            "; ".join(filter(None, (figure.get("note"), _measured(figure)))),
        )
        for name, figure in result["figures"].items()
    ]
    return table(("figure", "value", "unit", "goal", "note"), rows)


def _measured(figure: Result) -> str:
    """The date and commit of a figure that is newer than the rest of its file."""
    return f"{figure['date'][:10]}, commit {str(figure['commit'])[:12]}" if "commit" in figure else ""
