"""What the page about soups quotes from the results of `benchmarks.adaptersoup`: tables with pictures of them.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`, and by `docs.generate` for the pictures. Every
figure is of the novel domains alone; hostile sets are counted elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from docs.markdown import table
from docs.papers import FOLDER
from docs.pictures import Series, curves, marks

Result = Mapping[str, Any]
Row = Mapping[str, Any]
FULL = 100
NOISE = "quick beside noise"
LINES = ("instant", "quick", "thorough", "tune", "tune fresh 0.003", "tune fresh 0.01")
WALL_TICKS, SIZE_TICKS = (0.1, 0.3, 1, 3, 10, 30), (5, 15, 30, 100)


def _rows(result: Result) -> dict[tuple[str, int], list[Row]]:
    """Rows of the novel domains by way and passages."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in result["rows"]:
        if not row["hostile"] and row["way"] != NOISE:
            found.setdefault((row["way"], row["passages"]), []).append(row)
    return found


def change(rows: Sequence[Row]) -> float:
    """Of perplexity, in percent, geometric over domains and draws."""
    return 100 * math.expm1(fmean(row["over"] for row in rows))


def error(rows: Sequence[Row]) -> float:
    """The standard error of that change, from those of the test passages, which draws of one domain share."""
    domains: dict[str, list[float]] = {}
    for row in rows:
        domains.setdefault(row["domain"], []).append(row["over_error"])
    return (100 + change(rows)) * math.hypot(*map(fmean, domains.values())) / len(domains)


def passes(rows: Sequence[Row]) -> float:
    """Median wall time of an answer in passes of the base over the sample."""
    return float(median(row["wall_s"] / row["forward_s"] for row in rows))


def _change(rows: Sequence[Row]) -> str:
    return f"{change(rows):+.1f} ± {error(rows):.1f}" if rows else ""


def ways(result: Result) -> list[str]:
    """Every way on a hundred passages, the best first."""
    found = sorted((change(rows), way, rows) for (way, size), rows in _rows(result).items() if size == FULL)
    cells = [
        (way, _change(rows), f"{passes(rows):.1f}", str(sum(row["abstained"] for row in rows)), str(len(rows)))
        for _, way, rows in found
    ]
    head = ("way", "change of perplexity, %", "wall time in passes of the base", "is the base", "answers")
    image = f"![Change of perplexity by wall time]({FOLDER.name}/{result['name']}_wall.svg)"
    return [image, "", *table(head, cells)]


def draw_wall(result: Result) -> str:
    """Each way as a mark over its wall time."""
    points = {way: (passes(rows), change(rows)) for (way, size), rows in _rows(result).items() if size == FULL}
    return marks(
        f"What it takes off, by wall time, {FULL} passages", points, ticks=WALL_TICKS,
        across="wall time in passes of the base over the sample", up="change of perplexity, %",
    )  # fmt: skip


def sizes(result: Result) -> list[str]:
    """Some ways by the size of the sample."""
    found = _rows(result)
    known = sorted({size for way, size in found if way in LINES})
    cells = [(way, *(_change(found.get((way, size), ())) for size in known)) for way in LINES]
    image = f"![Change of perplexity by the size of the sample]({FOLDER.name}/{result['name']}_sizes.svg)"
    return [image, "", *table(("way", *(f"{size} passages" for size in known)), cells)]


def draw_sizes(result: Result) -> str:
    """Each of these ways as a line over the passages of the sample."""
    found = _rows(result)
    lines = {way: [(size, change(rows)) for (name, size), rows in found.items() if name == way] for way in LINES}
    series = [Series(way, points) for way, points in lines.items() if points]
    return curves(
        "What it takes off, by the size of the sample", series, logarithmic=True, ticks=SIZE_TICKS,
        across="passages of the sample", up="change of perplexity, %",
    )  # fmt: skip


VIEWS: dict[str, Callable[[Result], list[str]]] = {"ways": ways, "sizes": sizes}
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""
RESULTS = ("adaptersoup", "adaptersoup_smollm2")


def pictures(results: Path) -> dict[Path, str]:
    """Every picture whose result is there, by its path from the project's root."""
    found = {}
    for name in RESULTS:
        path = results / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            found[FOLDER / f"{name}_wall.svg"] = draw_wall(result)
            found[FOLDER / f"{name}_sizes.svg"] = draw_sizes(result)
    return found
