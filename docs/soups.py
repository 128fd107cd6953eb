"""Tables, sentences and pictures of the results of `benchmarks.adaptersoup`.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`, and by `docs.generate` for the pictures. Changes
of perplexity are those of the novel domains, without hostile sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.soups import ALONE, BASE, CONTROL, EFFORTS, LADDER, SINGLE, VARIANTS
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


def _rows(result: Result) -> dict[tuple[str, int], list[Row]]:
    """Rows of the novel domains by way and passages, without those that only the page on the papers uses."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in result["rows"]:
        if not row["hostile"] and row["way"] not in (ALONE, *VARIANTS):
            groups.setdefault((row["way"], row["passages"]), []).append(row)
    return groups


def _largest(result: Result) -> dict[str, list[Row]]:
    """Rows by way on the largest sample."""
    groups = _rows(result)
    full = max(size for _, size in groups)
    return {way: rows for (way, size), rows in groups.items() if size == full}


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


def _seconds(rows: Sequence[Row]) -> str:
    return "" if (time := seconds(rows)) is None else f"{time:.0f}" if time > 10 else f"{time:.1f}"


def ways(result: Result, name: str) -> list[str]:
    """All ways on the largest sample, best first, under a picture of them."""
    cells = [
        (change(rows), way, _change(rows), _seconds(rows), str(len(_worse(rows))), str(_abstentions(rows)))
        for way, rows in _largest(result).items()
        if way != CONTROL
    ]
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


def _worse(rows: Sequence[Row]) -> list[Row]:
    """The rows whose loss is more than one standard error above the base's."""
    return [row for row in rows if row["difference"] > row["standard_error"]]


def _abstentions(rows: Sequence[Row]) -> int:
    return sum(row.get("abstained", False) for row in rows)


def draw_wall(result: Result) -> str:
    """A plot with a mark for each strategy over its seconds."""
    rows_by_way = _largest(result)
    places = {way: (time, change(rows)) for way, rows in rows_by_way.items() if (time := seconds(rows))}
    size = next(iter(rows_by_way.values()))[0]["passages"]
    return to_svg(
        points(
            f"Change of perplexity by seconds, {size} passages",
            places,
            ticks=WALL_TICKS,
            x_label="seconds from the sample to the model",
            y_label="change of perplexity, %",
        )
    )


BRIEF = {
    CONTROL: "control: a LoRA of the same size, trained on textbooks of other subjects",
    BASE: "base model",
    SINGLE: "best single LoRA, chosen on the test text",
    "clustering": "soup by the clustering of the AdapterSoup paper",
    "instant": "soup, effort `instant`",
    "quick": "soup, effort `quick`, a mixture only",
    "tune": "soup, effort `tune`, the default, which also trains it on the sample",
    "peft": "new LoRA, trained on the sample with PEFT, the best of three rates (one training)",
}
"""Ways as the README names them."""


def brief(result: Result, _name: str) -> list[str]:
    """The changes and seconds of the ways that the README shows, on the largest sample."""
    rows_by_way = _largest(result)
    cells = [
        (label, "" if way == CONTROL else _change(rows_by_way[way]), _seconds(rows_by_way[way]))
        for way, label in BRIEF.items()
        if way in rows_by_way
    ]
    return table(("model for the new domain", "change of perplexity to the control, %", "seconds"), cells)


def sizes(result: Result, _name: str) -> list[str]:
    """Some strategies by the size of the sample."""
    groups = _rows(result)
    sample_sizes = sorted({size for way, size in groups if way in LINES})
    cells = [
        (way, *(_change(groups.get((way, size), ())) for size in sample_sizes))
        for way in LINES
        if any((way, size) in groups for size in sample_sizes)
    ]
    return table(("way", *(f"{size} passages" for size in sample_sizes)), cells)


VIEWS: dict[str, Callable[[Result, str], list[str]]] = {"brief": brief, "ways": ways, "sizes": sizes}
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""
RESULTS = (
    "adaptersoup_smollm2_lora",
    "adaptersoup_smollm2_lora_5",
    "adaptersoup_smollm2_lora_15",
    "adaptersoup_smollm2",
)
"""Files whose picture a page shows."""


def pictures(results: Path) -> dict[Path, str]:
    """Every picture whose results file exists, by its path from the project's root."""
    return {
        FOLDER / f"{name}_wall.svg": draw_wall(json.loads(path.read_text(encoding="utf-8")))
        for name in RESULTS
        if (path := results / f"{name}.json").is_file()
    }
