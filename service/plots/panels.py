"""A picture of panels, one below the other: rows of bars, or of marks with their intervals, under a caption each.

Knows no value of the registry. Every row has its number beside it, so that neither colour nor length is alone; what is
chosen is filled, the rest is not.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.pictures import LETTER, STYLE, svg, text_at
from service.plots.measured import Measured
from service.plots.ticks import tick_places, tick_step

WIDTH, LABELS, NUMBERS = 760, 280, 130
"""Pixels of the picture, of the labels' part on the left, and of the numbers' part on the right."""
ROW, CAPTION, AXIS, LINE, TOP, MARGIN = 24, 26, 30, 17, 34, 20
MOST_ROWS = 50
"""Of a panel; the rest is counted below them."""
TICKS = 5
PAGE = ".page,.other{fill:#fff}@media(prefers-color-scheme:dark){.page,.other{fill:#0d1117}}"
"""A ground of its own: a notebook can be light where its reader's system is dark."""


@dataclass(frozen=True)
class Bar:
    """A length from zero, and how it is said; one that is not `chosen` is an outline."""

    label: str
    value: float
    said: str
    chosen: bool = True


@dataclass(frozen=True)
class Bars:
    """Rows of lengths."""

    caption: str
    rows: Sequence[Bar]


@dataclass(frozen=True)
class Intervals:
    """Rows of differences with their intervals, over one axis with a line at zero."""

    caption: str
    rows: Sequence[Measured]


Panel = Bars | Intervals


def paneled(title: str, sentences: Sequence[str], panels: Sequence[Panel]) -> str:
    """The picture: a title, sentences below it, and every panel that has a row."""
    y = float(TOP)
    parts: list[str] = []
    for line in [line for sentence in sentences for line in textwrap.wrap(sentence, _letters(WIDTH - 2 * MARGIN))]:
        parts.append(text_at(MARGIN, y + 12, line))
        y += LINE
    for panel in panels:
        if panel.rows:
            y += 10
            parts += _panel(panel, y)
            y += _height(panel)
    height = round(y + 10)
    ground = f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    heading = _short(title, WIDTH - 2 * MARGIN)
    return svg(heading, parts, width=WIDTH, height=height, style=STYLE + PAGE, left=MARGIN, ground=ground)


def _height(panel: Panel) -> float:
    shown = min(len(panel.rows), MOST_ROWS)
    more = LINE if len(panel.rows) > MOST_ROWS else 0
    return CAPTION + ROW * shown + more + (AXIS if isinstance(panel, Intervals) else 6)


def _panel(panel: Panel, top: float) -> Iterator[str]:
    yield text_at(MARGIN, top + 15, panel.caption)
    top += CAPTION
    if isinstance(panel, Bars):
        yield from _bars(panel.rows[:MOST_ROWS], top)
    else:
        yield from _intervals(panel.rows[:MOST_ROWS], top)
    left = len(panel.rows) - MOST_ROWS
    if left > 0:
        yield text_at(
            MARGIN, top + ROW * MOST_ROWS + (AXIS if isinstance(panel, Intervals) else 0) + 12, f"{left} more"
        )


def _bars(rows: Sequence[Bar], top: float) -> Iterator[str]:
    low, high = min(0.0, *(row.value for row in rows)), max(0.0, *(row.value for row in rows))

    def at(value: float) -> float:
        return LABELS + (value - low) / (high - low or 1.0) * (WIDTH - LABELS - NUMBERS)

    for number, row in enumerate(rows):
        y = top + ROW * number
        yield _label(row.label, y)
        left, wide = min(at(row.value), at(0.0)), abs(at(row.value) - at(0.0))
        kind = "s0" if row.chosen else "s0 other"
        yield f'<rect class="{kind}" x="{left:.1f}" y="{y + 5:.1f}" width="{wide:.1f}" height="{ROW - 10}"/>'
        yield text_at(WIDTH - NUMBERS + 10, y + 16, row.said)
    yield f'<path class="axis" d="M{at(0.0):.1f} {top:.1f}V{top + ROW * len(rows):.1f}"/>'


def _intervals(rows: Sequence[Measured], top: float) -> Iterator[str]:
    low, high = min(0.0, *(row.low for row in rows)), max(0.0, *(row.high for row in rows))
    step = tick_step((high - low) / TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    bottom = top + ROW * len(rows)

    def at(value: float) -> float:
        return LABELS + (value / step - first) / max(1, last - first) * (WIDTH - LABELS - NUMBERS)

    for tick in range(first, last + 1):
        x, kind = at(tick * step), "grid" if tick else "axis"
        yield f'<line class="{kind}" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>'
        yield text_at(x, bottom + 15, f"{tick * step:+.{tick_places(step)}f}" if tick else "0", anchor="middle")
    for number, row in enumerate(rows):
        y = top + ROW * number
        yield _label(row.label, y)
        kind = "s0" if row.chosen else "s0 other"
        yield f'<path class="s0" d="M{at(row.low):.1f} {y + 12:.1f}H{at(row.high):.1f}" stroke-width="2"/>'
        yield f'<circle class="{kind}" cx="{at(row.value):.1f}" cy="{y + 12:.1f}" r="4.5" stroke-width="1.5"/>'
        reach = f" ± {(row.high - row.low) / 2:.4f}" if row.high > row.low else ""
        yield text_at(WIDTH - NUMBERS + 10, y + 16, f"{row.value:+.4f}{reach}")


def _label(text: str, y: float) -> str:
    return text_at(LABELS - 12, y + 16, _short(text, LABELS - 12 - MARGIN), anchor="end")


def _short(text: str, room: float) -> str:
    """The text, or its two ends where it has no room: versions are at the end of a name."""
    most = _letters(room)
    return text if len(text) <= most else f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def _letters(room: float) -> int:
    return int(room / LETTER)
