"""The claims of a paper with our measurements, as docs/explanation/papers.md shows them.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`: `claims` are all claims of a results file, the
other views those of one paper. The block `<!-- figures:papers -->` counts the verdicts of all results files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.claims import ERRORS
from docs.markdown import table
from docs.summaries import sources

Result = Mapping[str, Any]
Row = Mapping[str, Any]
PAPER = re.compile(r"^(Houlsby et al\.|AdaMix|SparseAdapter|AdapterSoup)[:,] ")
"""The name of the paper before its claim, which the heading above the table repeats."""
RESULTS = ("lm_adapters", "single_domain")
"""The results files with claims."""
BEYOND = re.compile(r"not in the paper|the paper does not say")
"""Words about a claim that goes beyond its paper."""
WITHOUT_ERROR = "at least, without a standard error: "


def claims(result: Result, paper: str | None = None) -> list[str]:
    """Each claim of the paper, with our figure, its interval, and the verdict."""
    rows = [row for row in result["rows"] if "claim" in row and row.get("of") == paper]
    said = [PAPER.sub("", str(row["paper"])) for row in rows]
    shown = [text if text != before else "" for text, before in zip(said, ["", *said], strict=False)]
    cells = [
        (text, str(row["says"]), _interval(row), f"*{row['verdict']}*") for text, row in zip(shown, rows, strict=True)
    ]
    return table(("the paper", "claim tested here", "difference (interval)", "verdict"), cells)


def total(folder: Path) -> list[str]:
    """The number of claims by verdict over all results files, in two sentences."""
    files = {name: path for name in RESULTS if (path := folder / f"{name}.json").is_file()}
    if not files:
        return [f"Not measured yet: there is no `benchmarks/results/{RESULTS[0]}.json`."]
    results: dict[str, Result] = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items()}
    rows = [row for result in results.values() for row in result["rows"] if "claim" in row]
    counts = Counter(str(row["verdict"]) for row in rows)
    beyond = sum(row["verdict"] == "agrees" and BEYOND.search(str(row["paper"])) is not None for row in rows)
    return [
        f"Of {len(rows)} tested claims, {counts['agrees']} agree, {counts['disagrees']} disagree, and "
        f"{counts['undetermined']} are undetermined. {beyond} of the claims that agree are not the papers' own, as the "
        "first column states.",
        "",
        *sources(results),
    ]


def _interval(row: Row) -> str:
    """The difference with two standard errors on either side; marked if its error has no spread over trainings."""
    if row["standard_error"] is None:
        return str(row["note"]).removeprefix(WITHOUT_ERROR)
    value, margin = row["difference"], ERRORS * row["standard_error"]
    mark = "" if row["standard_error_seeds"] is not None else " †"
    return f"{value:+.4f} ({value - margin:+.4f} to {value + margin:+.4f}){mark}"


VIEWS: dict[str, Callable[[Result], list[str]]] = {
    "claims": claims, **{name: partial(claims, paper=name) for name in ("houlsby", "adamix", "sparse")}
}  # fmt: skip
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""
