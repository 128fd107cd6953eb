"""Pictures of `benchmarks.adaptersoup`: what each way gains against its wall time, and by the size of the sample.

Drawn from the rows of the results alone; the same rows give the same bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

Rows = Sequence[Mapping[str, Any]]
WIDTH, HEIGHT = 8.0, 4.5


def gain(rows: Rows) -> tuple[float, float]:
    """Change of perplexity in percent, geometric over rows, and two standard errors of it."""
    mean = fmean(row["over"] for row in rows)
    error = math.sqrt(sum(row["over_error"] ** 2 for row in rows)) / len(rows)
    return 100 * math.expm1(mean), 200 * math.exp(mean) * error


def by_way(rows: Rows) -> dict[str, Rows]:
    """Rows of each way."""
    found = defaultdict(list)
    for row in rows:
        found[row["way"]].append(row)
    return dict(found)


def against_wall(rows: Rows, path: Path, *, size: int, over: str) -> None:
    """Each way as a mark: passes of the base that it takes, by wall clock, and what it takes off the perplexity."""
    ways = by_way([row for row in rows if row["passages"] == size and not row["hostile"]])
    with _figure(path) as axes:
        for number, (way, some) in enumerate(sorted(ways.items())):
            passes = median(row["wall_s"] / row["forward_s"] for row in some)
            change, error = gain(some)
            marks = {"fmt": "o", "markersize": 6, "capsize": 3, "color": f"C{number % 10}"}
            axes.errorbar([passes], [change], yerr=[error], **marks)
            axes.annotate(way, (passes, change), xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_xlabel(f"wall time in passes of the base over the sample ({size} passages)")
        axes.set_ylabel(f"change of perplexity against the {over}, %")


def by_size(rows: Rows, path: Path, *, ways: Sequence[str], over: str) -> None:
    """Each of some ways as a line over the passages of the sample."""
    with _figure(path) as axes:
        for way in ways:
            some = [row for row in rows if row["way"] == way and not row["hostile"]]
            sizes = sorted({row["passages"] for row in some})
            found = [gain([row for row in some if row["passages"] == size]) for size in sizes]
            changes, errors = [one for one, _ in found], [error for _, error in found]
            axes.errorbar(sizes, changes, yerr=errors, fmt="o-", capsize=3, label=way)
        axes.set_xscale("log")
        sizes = sorted({row["passages"] for row in rows if row["way"] in ways})
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("passages of the sample")
        axes.set_ylabel(f"change of perplexity against the {over}, %")
        axes.legend(frameon=False)


@contextmanager
def _figure(path: Path) -> Iterator[Any]:
    """Axes to draw on, written to `path` as SVG afterwards; bars are two standard errors, lower is better."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "soup", "font.size": 10, "font.family": "sans-serif"}):
        figure, axes = pyplot.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes.axhline(0, color="#444", linewidth=1)
        yield axes
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="y", color="#ddd", linewidth=0.6)
        axes.set_axisbelow(True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
