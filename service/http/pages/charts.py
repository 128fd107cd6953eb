"""Charts that the server draws as SVG: where each mark is. Beside each stands a table that says all of it in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.plots.measured import Measured
from service.plots.ticks import tick_places, tick_step

MOST_MARKS = 50
Chart = TypeVar("Chart")
TOP = 8.0
"""Pixels above the first row."""


@dataclass(frozen=True)
class Room:
    """How a chart is laid out, in pixels: the labels' part, what is drawn, a row, and how many ticks there are.

    Without a part for labels these are above what they name, for narrow screens.
    """

    labels: float
    wide: float
    row: float
    ticks: int

    def label_y(self, number: int) -> float:
        """The baseline of a label."""
        return TOP + self.row * number + (self.row / 2 + 4 if self.labels else 12)

    def mark_y(self, number: int) -> float:
        """The middle of what is drawn in a row."""
        return TOP + self.row * (number + 0.5) + (0 if self.labels else 9)


ON_DESK = Room(300, 400, 30, 5)
IN_HAND = Room(0, 226, 46, 3)
ROOMS = {"desk": ON_DESK, "hand": IN_HAND}
"""A chart is drawn for both, and the style sheet shows the one that fits."""


def in_rooms(draw: Callable[[Room], Chart | None]) -> dict[str, Chart]:
    """A chart as `desk` and `hand` have room for it; none where it is not drawn."""
    drawn = {name: draw(room) for name, room in ROOMS.items()}
    return {name: one for name, one in drawn.items() if one is not None}


@dataclass(frozen=True)
class Mark:
    """A measured row where it is drawn."""

    label: str
    label_y: float
    y: float
    x: float
    low: float
    high: float
    chosen: bool


@dataclass(frozen=True)
class Tick:
    """A number on the axis."""

    x: float
    text: str


@dataclass(frozen=True)
class Intervals:
    """A chart of differences with their intervals, and a line at zero."""

    width: float
    height: float
    marks: tuple[Mark, ...]
    ticks: tuple[Tick, ...]
    zero: float


def intervals(rows: Sequence[Measured], room: Room = ON_DESK) -> Intervals | None:
    """The chart of some rows; None for none, and for more than are read as a chart."""
    if not rows or len(rows) > MOST_MARKS:
        return None
    low, high = min(0.0, *(row.low for row in rows)), max(0.0, *(row.high for row in rows))
    step = tick_step((high - low) / room.ticks)
    first, last = math.floor(low / step), math.ceil(high / step)
    edge = room.labels or 20.0

    def at(value: float) -> float:
        return edge + room.wide * (value / step - first) / max(1, last - first)

    marks = [
        Mark(row.label, room.label_y(n), room.mark_y(n), at(row.value), at(row.low), at(row.high), row.chosen)
        for n, row in enumerate(rows)
    ]
    ticks = [Tick(at(number * step), tick_text(number * step, step)) for number in range(first, last + 1)]
    height = TOP + room.row * len(rows) + 34
    return Intervals(edge + room.wide + 24, height, tuple(marks), tuple(ticks), at(0.0))


def drawn_intervals(rows: Sequence[Measured]) -> dict[str, Intervals]:
    """The chart of some rows as `desk` and `hand` have room for it."""
    return in_rooms(lambda room: intervals(rows, room))


def tick_text(value: float, step: float) -> str:
    """A number of an axis, with its sign and as many places as a step needs."""
    return "0" if value == 0 else f"{value:+.{tick_places(step)}f}".replace("-", "\N{MINUS SIGN}")


# --- shares -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One part of a row; `kind` tells parts apart, and the legend names them."""

    x: float
    width: float
    kind: int
    title: str


@dataclass(frozen=True)
class BarRow:
    """What is added at one place, part by part."""

    label: str
    label_y: float
    y: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Stacked:
    """Bars of several parts, one below the other."""

    width: float
    height: float
    rows: tuple[BarRow, ...]
    names: tuple[str, ...]


def stacked(
    labels: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float]], room: Room = ON_DESK
) -> Stacked | None:
    """The chart of `values`, a row for each label and in it a part for each name; None for too many."""
    if not labels or len(labels) * len(names) > MOST_MARKS:
        return None
    longest = max(max(sum(row) for row in values), 1e-9)
    rows = []
    for number, (label, row) in enumerate(zip(labels, values, strict=True)):
        x, bars = room.labels, []
        for kind, (name, value) in enumerate(zip(names, row, strict=True)):
            width = room.wide * value / longest
            if width:
                bars.append(
                    Bar(
                        x,
                        width,
                        kind,
                        f"{label}, {name}: {value:,}" if isinstance(value, int) else f"{label}, {name}: {value:.3f}",
                    )
                )
            x += width
        rows.append(BarRow(label, room.label_y(number), room.mark_y(number) - 11, tuple(bars)))
    return Stacked(room.labels + room.wide + 10, TOP + room.row * len(labels), tuple(rows), tuple(names))


def drawn_stacked(labels: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float]]) -> dict[str, Stacked]:
    """The chart of `values` as `desk` and `hand` have room for it."""
    return in_rooms(lambda room: stacked(labels, names, values, room))


# --- places -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """Something that lies somewhere; `mine` is the sample."""

    label: str
    x: float
    y: float
    mine: bool = False


@dataclass(frozen=True)
class Dot:
    """A spot where it is drawn, with its number, and its label where there is room for it."""

    number: int
    title: str
    x: float
    y: float
    label: str
    label_x: float
    before: bool
    """Whether the label ends there, before the dot, and does not begin there."""
    mine: bool


@dataclass(frozen=True)
class Scatter:
    """A chart of places; both its axes have one scale, and no unit."""

    width: float
    height: float
    dots: tuple[Dot, ...]


LETTER, LINE, RADIUS = 6.6, 15.0, 9.0
"""Pixels of a letter, of a line, and of a dot."""


def scatter(spots: Sequence[Spot], room: Room = ON_DESK) -> Scatter | None:
    """The chart of some spots, the sample on top; None for none, and for more than are read as a chart."""
    if not spots or len(spots) > MOST_MARKS:
        return None
    labelled = room.labels > 0
    side, width = (150.0, 980.0) if labelled else (14.0, 266.0)
    height = 520.0 if labelled else 300.0
    xs, ys = [one.x for one in spots], [one.y for one in spots]
    spans = max(xs) - min(xs), max(ys) - min(ys)
    rooms = width - 2 * side, height - 40
    scale = min((room / span for room, span in zip(rooms, spans, strict=True) if span > 0), default=0.0)
    middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    places = [
        (width / 2 + scale * (x - middle[0]), height / 2 - scale * (y - middle[1])) for x, y in zip(xs, ys, strict=True)
    ]
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places]
    dots = []
    for number, (spot, (x, y)) in enumerate(zip(spots, places, strict=True)):
        label, label_x, before = "", 0.0, False
        wide = LETTER * len(spot.label)
        for begin in (x + RADIUS + 3, x - RADIUS - 3 - wide) if labelled else ():
            box = (begin, y - LINE / 2, begin + wide, y + LINE / 2)
            if begin >= 0 and begin + wide <= width and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                label, before = spot.label, begin < x
                label_x = begin + wide if before else begin
                break
        dots.append(Dot(number, spot.label, x, y, label, label_x, before, spot.mine))
    dots.sort(key=lambda one: one.mine)  # what is drawn last is on top
    return Scatter(width, height, tuple(dots))


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def drawn_scatter(spots: Sequence[Spot]) -> dict[str, Scatter]:
    """The chart of some spots as `desk` and `hand` have room for it."""
    return in_rooms(lambda room: scatter(spots, room))


# --- a row of bars in a line of text ------------------------------------------------------------------


@dataclass(frozen=True)
class SparkBar:
    """A bar of a spark line, above or below its zero; the last one is the value in words beside it."""

    x: float
    y: float
    height: float
    last: bool


@dataclass(frozen=True)
class Spark:
    """A chart as high as a line of text."""

    width: float
    height: float
    zero: float
    bars: tuple[SparkBar, ...]


def spark(values: Sequence[float]) -> Spark:
    """The chart of some values, the oldest first; what is above zero points up."""
    high, low = max(0.0, *values), min(0.0, *values)
    tall, step = 18.0, 7.0
    scale = tall / ((high - low) or 1.0)
    bars = [
        SparkBar(
            step * number + 1,
            (high - max(value, 0.0)) * scale + 1,
            max(abs(value) * scale, 1.0),
            number == len(values) - 1,
        )
        for number, value in enumerate(values)
    ]
    return Spark(step * len(values) + 1, tall + 2, high * scale + 1, tuple(bars))
