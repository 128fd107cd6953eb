"""The demo's picture: for every novel domain, how far each model's perplexity is from the base's, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demo.table import Row, Table, change

TWO_ERRORS = 2.0


def draw(table: Table, path: Path) -> None:
    """Write the picture as SVG; the same table gives the same bytes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    rows = [row for row in table.distinct()[0] if row is not table.base]
    with mpl.rc_context({"svg.hashsalt": "soup", "font.size": 10, "font.family": "sans-serif"}):
        figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.28 * len(rows) * len(table.domains)), layout="constrained")
        _marks(axes, table, rows)
        axes.axvline(0, color="#444", linewidth=1)
        axes.set_yticks([-number for number in range(len(table.domains))], table.domains)
        axes.set_xlabel("change of perplexity against the base model, % (bars: two standard errors); left is better")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#ddd", linewidth=0.6)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def _marks(axes: Any, table: Table, rows: list[Row]) -> None:
    """One colour and one mark a row, side by side within a domain."""
    for place, row in enumerate(rows):
        grey = row is table.control
        shift = 0.6 * ((place + 0.5) / len(rows) - 0.5)
        found = [table.difference(row, domain) for domain in table.domains]
        middle = [change(each.difference) for each in found]
        low = [m - change(f.difference - TWO_ERRORS * f.standard_error) for m, f in zip(middle, found, strict=True)]
        high = [change(f.difference + TWO_ERRORS * f.standard_error) - m for m, f in zip(middle, found, strict=True)]
        axes.errorbar(
            middle, [-number - shift for number in range(len(found))], xerr=[low, high], fmt="s" if grey else "o",
            markersize=6, capsize=3, color="#777" if grey else f"C{place}", label=row.name, linestyle="none",
        )  # fmt: skip
