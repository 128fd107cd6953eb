"""What the page about soups quotes from the results of `benchmarks.adaptersoup`: tables with pictures of them.

Called by `docs.figures` for the blocks `<!-- figures:NAME:VIEW -->`, and by `docs.generate` for the pictures. Every
figure is of the novel domains alone; hostile sets are counted elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.soups import ALONE, EFFORTS, LADDER
from benchmarks.soups.ratio import over_control
from docs.markdown import table
from plots.charts import CategoryAxis, Series, heat_map, interval_series, lines, points
from plots.style import to_svg

Result = Mapping[str, Any]
Row = Mapping[str, Any]
FOLDER = Path("docs") / "explanation" / "pictures"
"""Of the pictures, from the project's root; the pages that show them are in the folder above."""
LINES = (*EFFORTS, *LADDER)
WALL_TICKS, SIZE_TICKS = (0.3, 1, 3, 10, 30, 100, 300, 1000), (5, 15, 30, 60, 100)


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
    """Of perplexity, in percent, geometric over domains and draws."""
    return 100 * (over_control(rows)[0] - 1)


def error(rows: Sequence[Row]) -> float:
    """The standard error of that change, from those of the test passages, which draws of one domain share."""
    return 100 * over_control(rows)[1]


def seconds(rows: Sequence[Row]) -> float | None:
    """Median seconds from the sample to the model; None for models that no sample made."""
    times = [row["wall_s"] for row in rows if row.get("wall_s") is not None]
    return float(median(times)) if times else None


def _change(rows: Sequence[Row]) -> str:
    return f"{change(rows):+.1f} ± {error(rows):.1f}" if rows else ""


def ways(result: Result, name: str) -> list[str]:
    """Every way on the largest sample, the best first."""
    found = sorted((change(rows), way, rows) for way, rows in _largest(result).items())
    cells = [
        (way, _change(rows), "" if (time := seconds(rows)) is None else f"{time:.1f}",
         str(sum(row.get("abstained", False) for row in rows)), str(len(rows)))
        for _, way, rows in found
    ]  # fmt: skip
    head = ("way", "change of perplexity, %", "seconds", "is the base", "answers")
    image = f"![Change of perplexity by seconds]({FOLDER.name}/{name}_wall.svg)"
    return [image, "", *table(head, cells)]


def draw_wall(result: Result) -> str:
    """Each way as a mark over its seconds."""
    found = _largest(result)
    places = {way: (time, change(rows)) for way, rows in found.items() if (time := seconds(rows))}
    size = next(iter(found.values()))[0]["passages"]
    return to_svg(points(
        f"Change of perplexity by seconds, {size} passages", places, ticks=WALL_TICKS,
        x_label="seconds from the sample to the model", y_label="change of perplexity, %",
    ))  # fmt: skip


def short(result: Result, _name: str) -> list[str]:
    """One sentence: what efforts and the paper's clustering take off, and what the best adapter does that is known."""
    found = _largest(result)
    single = next(name for name in result["figures"] if name.endswith(("single_over_control", "single_ratio")))
    zero = "base model's" if single.endswith("ratio") else "control adapter's"
    parts = [f"`{way}` {change(found[way]):+.1f} %" for way in EFFORTS if way in found]
    best = 100 * (result["figures"][single]["value"] - 1)
    domains, size = {row["domain"] for row in found["clustering"]}, found["clustering"][0]["passages"]
    return [
        f"Change of perplexity over the {zero}, geometric mean of {len(domains)} domains, {size} passages to cook "
        f"from: {', '.join(parts)}. The paper's clustering comes to {change(found['clustering']):+.1f} %, the best "
        f"single adapter, chosen on the test text itself, to {best:+.1f} %."
    ]


def sizes(result: Result, name: str) -> list[str]:
    """Some ways by the size of the sample."""
    found = _rows(result)
    known = sorted({size for way, size in found if way in LINES})
    cells = [
        (way, *(_change(found.get((way, size), ())) for size in known))
        for way in LINES
        if any((way, size) in found for size in known)
    ]
    image = f"![Change of perplexity by the size of the sample]({FOLDER.name}/{name}_sizes.svg)"
    return [image, "", *table(("way", *(f"{size} passages" for size in known)), cells)]


def draw_sizes(result: Result) -> str:
    """Each of these ways as a line over the passages of the sample."""
    found = _rows(result)
    changes = {way: [(size, change(rows)) for (name, size), rows in found.items() if name == way] for way in LINES}
    series = [Series(way, values) for way, values in changes.items() if values]
    return to_svg(lines(
        "What it takes off, by the size of the sample", series, logarithmic=True, ticks=SIZE_TICKS,
        x_label="passages of the sample", y_label="change of perplexity, %",
    ))  # fmt: skip


def _by_domain(result: Result) -> dict[str, dict[str, list[Row]]]:
    """Rows of each effort on the largest sample, by domain."""
    found: dict[str, dict[str, list[Row]]] = {}
    largest = _largest(result)
    for way in EFFORTS:
        for row in largest.get(way, ()):
            found.setdefault(row["domain"], {}).setdefault(way, []).append(row)
    return found


def efforts(result: Result, name: str) -> list[str]:
    """Each domain with every effort."""
    found = _by_domain(result)
    ways = list(next(iter(found.values())))
    cells = [(domain, *(_change(rows[way]) for way in ways)) for domain, rows in found.items()]
    image = f"![Change of perplexity by domain]({FOLDER.name}/{name}_efforts.svg)"
    return [image, "", *table(("domain", *ways), cells)]


def draw_efforts(result: Result) -> str:
    """Every effort's change with two standard errors on either side, domain by domain."""
    found = _by_domain(result)
    series = {
        way: {
            domain: (middle := change(rows[way]), middle - 2 * error(rows[way]), middle + 2 * error(rows[way]))
            for domain, rows in found.items()
        }
        for way in next(iter(found.values()))
    }
    return to_svg(interval_series(
        "What efforts take off, by domain", rows=list(found), series=series,
        x_label="change of perplexity, %, with two standard errors on either side",
    ))  # fmt: skip


def adapters(result: Result, name: str) -> list[str]:
    """Every adapter of the bank by itself on each novel domain: a picture, a sentence, and the numbers."""
    rows = [row for row in result["rows"] if row["way"] == ALONE]
    better = sum(row["difference"] < 0 for row in rows)
    surely = sum(row["difference"] < -2 * row["standard_error"] for row in rows)
    said = f"Of {len(rows)} pairs of an adapter and a domain {better} beat the base, {surely} by two standard errors."
    image = f"![Change by each adapter alone]({FOLDER.name}/{name}_adapters.svg)"
    domains = sorted({row["domain"] for row in rows})
    found = {(row["adapter"], row["domain"]): row["difference"] for row in rows}
    names = sorted({adapter for adapter, _ in found})
    cells = [(one, *(f"{found[one, domain]:+.3f}" for domain in domains)) for one in names]
    folded = ["<details><summary>The numbers</summary>", "", *table(("adapter", *domains), cells), "", "</details>"]
    return [said, "", image, "", *folded]


def draw_adapters(result: Result) -> str:
    """The change of mean NLL per token by each adapter alone, those first that help most."""
    values = {(row["adapter"], row["domain"]): row["difference"] for row in result["rows"] if row["way"] == ALONE}
    means = {name: fmean(value for (one, _), value in values.items() if one == name) for name, _ in values}
    domains = sorted({domain for _, domain in values})
    plot = heat_map(
        "Each adapter alone, on domains it was not trained on",
        values,
        rows=CategoryAxis("adapters, most helpful first", sorted(means, key=lambda name: means[name])),
        columns=CategoryAxis("change of mean NLL per token against the base; orange is better", domains),
        number="+.2f",
    )
    return to_svg(plot)


def hostile(result: Result, _name: str) -> list[str]:
    """Each hostile set with every effort; what is not said to help is the base."""
    found = {(row["domain"], row["way"]): row for row in result["rows"] if row["hostile"]}
    sets = list(dict.fromkeys(domain for domain, _ in found))
    ways = [way for way in EFFORTS if any(way == tried for _, tried in found)]
    cells = [
        (one, *("the base" if (row := found[one, way])["abstained"] else _change([row]) for way in ways))
        for one in sets
    ]
    return table(("text", *ways), cells)


VIEWS: dict[str, Callable[[Result, str], list[str]]] = {
    "short": short, "ways": ways, "sizes": sizes, "efforts": efforts, "adapters": adapters, "hostile": hostile
}  # fmt: skip
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""
RESULTS = (
    "adaptersoup", "adaptersoup_smollm2", "adaptersoup_smollm2_lora", "adaptersoup_gemma_lora", "adaptersoup_base_lm"
)  # fmt: skip
DRAWN: dict[str, Callable[[Result], str]] = {
    "wall": draw_wall, "sizes": draw_sizes, "efforts": draw_efforts, "adapters": draw_adapters
}  # fmt: skip


def pictures(results: Path) -> dict[Path, str]:
    """Every picture whose result is there, by its path from the project's root."""
    found: dict[Path, str] = {}
    for name in RESULTS:
        path = results / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            several = len({size for _, size in _rows(result)}) > 1
            drawn = {what: draw for what, draw in DRAWN.items() if several or what != "sizes"}
            found |= {FOLDER / f"{name}_{what}.svg": draw(result) for what, draw in drawn.items()}
    return found
