"""Tables, sentences and pictures of the results of `benchmarks.adaptersoup`.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`, and by `docs.generate` for the pictures. Changes
of perplexity are those of the novel domains, without hostile sets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.soups import ALONE, EFFORTS, LADDER
from benchmarks.soups.ratio import over_control
from docs.markdown import table
from plots.charts import points
from plots.style import to_svg
from registry.cook.strategies import STRATEGIES

Result = Mapping[str, Any]
Row = Mapping[str, Any]
FOLDER = Path("docs") / "explanation" / "pictures"
"""Folder of the pictures, relative to the project's root; the pages that show them are in its parent folder."""
LINES = (*EFFORTS, *LADDER)
ADAPTERS, PASSAGES = 21, (5, 15, 30, 60, 100)
"""Of the table of costs."""
WALL_TICKS = (0.3, 1, 3, 10, 30, 100, 300, 1000)
_TUNED = re.compile(r"tune(?: fresh (?P<rate>[\d.]+))?(?P<passes> \d+ passes)?")
"""The name of a way that trains on the sample, as results files have it."""


def title(way: str) -> str:
    """The name of a way for readers: of a fresh adapter with its learning rate, and with its passes."""
    tuned = _TUNED.fullmatch(way)
    if tuned is None:
        return way
    start = "tune" if tuned["rate"] is None else f"fresh adapter, rate {tuned['rate']}"
    return start if tuned["passes"] is None else f"{start},{tuned['passes']}"


def _rows(result: Result) -> dict[tuple[str, int], list[Row]]:
    """Rows of the novel domains by way and passages."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in result["rows"]:
        if not row["hostile"] and row["way"] != ALONE:
            found.setdefault((row["way"], row["passages"]), []).append(row)
    return found


def _largest(result: Result) -> dict[str, list[Row]]:
    """Rows by way on the largest sample."""
    found = _rows(result)
    full = max(size for _, size in found)
    return {way: rows for (way, size), rows in found.items() if size == full}


def change(rows: Sequence[Row]) -> float:
    """The change of perplexity in percent, as a geometric mean over domains and draws."""
    return 100 * (over_control(rows)[0] - 1)


def error(rows: Sequence[Row]) -> float:
    """The standard error of that change, from those over test passages, which the draws of a domain share."""
    return 100 * over_control(rows)[1]


def seconds(rows: Sequence[Row]) -> float | None:
    """Median seconds from the sample to the model; None for models that do not depend on a sample."""
    times = [row["wall_s"] for row in rows if row.get("wall_s") is not None]
    return float(median(times)) if times else None


def _change(rows: Sequence[Row]) -> str:
    return f"{change(rows):+.1f} ± {error(rows):.1f}" if rows else ""


def ways(result: Result, name: str) -> list[str]:
    """All strategies on the largest sample and the best single adapter, best first."""
    cells = [
        (change(rows), title(way), _change(rows), "" if (time := seconds(rows)) is None else f"{time:.1f}",
         str(len(_worse(rows))), str(_abstentions(rows)))
        for way, rows in _largest(result).items()
    ]  # fmt: skip
    best = 100 * (_best_single(result)[1] - 1)
    cells.append((best, "best single adapter on the test text", f"{best:+.1f}", "", "", ""))
    head = ("way", "change of perplexity, %", "seconds", "worse than the base", "the base itself")
    image = f"![Change of perplexity by seconds]({FOLDER.name}/{name}_wall.svg)"
    return [image, "", *table(head, [row for _, *row in sorted(cells)])]


def costs() -> list[str]:
    """About how many forward passes of the base model over a sample each effort takes, by passages of the sample."""
    cells = [
        (f"`{effort}`", *(f"{strategy.passes(size, ADAPTERS):.1f}" for size in PASSAGES))
        for effort, strategy in STRATEGIES.items()
        if strategy.passes is not None
    ]
    return table((f"estimate for {ADAPTERS} adapters", *(f"{size} passages" for size in PASSAGES)), cells)


def _best_single(result: Result) -> tuple[str, float]:
    """The figure of the best single adapter on the test text: its name and its ratio of perplexities."""
    name = next(name for name in result["figures"] if name.endswith(("single_over_control", "single_ratio")))
    return name, float(result["figures"][name]["value"])


def _worse(rows: Sequence[Row]) -> list[Row]:
    """The rows whose loss is more than one standard error above the base's."""
    return [row for row in rows if row["difference"] > row["standard_error"]]


def _abstentions(rows: Sequence[Row]) -> int:
    return sum(row.get("abstained", False) for row in rows)


def _mark(way: str) -> str:
    """The name of a way beside its mark in a plot, where there is little room."""
    return title(way).replace("fresh adapter, rate", "fresh")


def draw_wall(result: Result) -> str:
    """A plot with a mark for each strategy over its seconds."""
    found = _largest(result)
    places = {_mark(way): (time, change(rows)) for way, rows in found.items() if (time := seconds(rows))}
    size = next(iter(found.values()))[0]["passages"]
    return to_svg(points(
        f"Change of perplexity by seconds, {size} passages", places, ticks=WALL_TICKS,
        x_label="seconds from the sample to the model", y_label="change of perplexity, %",
    ))  # fmt: skip


def short(result: Result, _name: str) -> list[str]:
    """The changes by efforts, by the paper's clustering, and by the best single adapter on the test text."""
    found = _largest(result)
    name, ratio = _best_single(result)
    zero = "base model's" if name.endswith("ratio") else "control adapter's"
    parts = [f"`{way}` {change(found[way]):+.1f} %" for way in EFFORTS if way in found]
    domains, size = {row["domain"] for row in found["clustering"]}, found["clustering"][0]["passages"]
    return [
        f"Change of perplexity over the {zero}, geometric mean of {len(domains)} domains, {size} passages to cook "
        f"from: {', '.join(parts)}. The paper's clustering: {change(found['clustering']):+.1f} %. The best single "
        f"adapter, chosen on the test text itself: {100 * (ratio - 1):+.1f} %."
    ]


def sizes(result: Result, _name: str) -> list[str]:
    """Some strategies by the size of the sample."""
    found = _rows(result)
    known = sorted({size for way, size in found if way in LINES})
    cells = [
        (title(way), *(_change(found.get((way, size), ())) for size in known))
        for way in LINES
        if any((way, size) in found for size in known)
    ]
    return table(("way", *(f"{size} passages" for size in known)), cells)


def worse(result: Result, _name: str) -> list[str]:
    """The numbers of efforts' answers and of single adapters that are worse than the base, in two sentences."""
    answers = [row for row in result["rows"] if row["way"] in EFFORTS]
    hostile = [row for row in answers if row["hostile"]]
    alone = [row for row in result["rows"] if row["way"] == ALONE]
    sets = ", ".join(f"`{name}`" for name in dict.fromkeys(row["domain"] for row in hostile))
    return [
        f"Of {len(answers)} answers of the efforts, {len(_worse(answers))} are worse than the base model by more than "
        f"one standard error, and {_abstentions(answers)} are the base model itself. {len(hostile)} of the answers are "
        f"for hostile text ({sets}); {_abstentions(hostile)} of these are the base model. By the same measure, one "
        f"adapter alone is worse in {len(_worse(alone))} of {len(alone)} pairs of an adapter and a domain."
    ]


VIEWS: dict[str, Callable[[Result, str], list[str]]] = {"short": short, "ways": ways, "sizes": sizes, "worse": worse}
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""
RESULTS = (
    "adaptersoup", "adaptersoup_smollm2", "adaptersoup_smollm2_lora", "adaptersoup_gemma_lora", "adaptersoup_base_lm"
)  # fmt: skip


def pictures(results: Path) -> dict[Path, str]:
    """Every picture whose results file exists, by its path from the project's root."""
    return {
        FOLDER / f"{name}_wall.svg": draw_wall(json.loads(path.read_text(encoding="utf-8")))
        for name in RESULTS
        if (path := results / f"{name}.json").is_file()
    }
