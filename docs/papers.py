"""The claims of a paper with our measurements, as docs/explanation/papers.md shows them.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`: `claims` are all claims of a results file, the
other views those of one paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.claims import ERRORS
from docs.markdown import table

Result = Mapping[str, Any]
Row = Mapping[str, Any]
PAPER = re.compile(r"^(Houlsby et al\.|AdaMix|SparseAdapter|AdapterSoup)[:,] ")
"""The name of the paper before its claim, which the heading above the table repeats."""
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
