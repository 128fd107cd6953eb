"""The demo's plot: the change of each model's perplexity against the base model on every novel domain, with
intervals.
"""

from __future__ import annotations

from pathlib import Path

from demo.table import Row, Table, change
from plots.charts import interval_series
from plots.style import to_svg

ERRORS = 2.0
"""Half the width of an interval, in standard errors."""


def draw(table: Table, path: Path) -> None:
    """Write the plot as SVG; equal tables give equal bytes."""
    rows = [row for row in table.distinct()[0] if row is not table.base]
    figure = interval_series(
        "",
        rows=table.domains,
        series={row.name: {domain: _interval(table, row, domain) for domain in table.domains} for row in rows},
        x_label="change of perplexity against the base model, % (bars: two standard errors); left is better",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(figure), encoding="utf-8")


def _interval(table: Table, row: Row, domain: str) -> tuple[float, float, float]:
    """The change in percent, and the ends of its interval."""
    measured = table.difference(row, domain)
    reach = ERRORS * measured.standard_error
    difference = measured.difference
    return change(difference), change(difference - reach), change(difference + reach)
