"""Charts of lines that the server draws as SVG: values by a step, a line for each series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.http.pages.charts import ON_DESK, Room, Tick, in_rooms
from service.plots.ticks import tick_step

LEFT, BOTTOM, MARGIN = 52.0, 40.0, 12.0
"""Pixels for the numbers beside and below, and to the other two edges."""
MOST_POINTS = 200
"""Of a line: more are not told apart on some hundred pixels."""


@dataclass(frozen=True)
class Series:
    """Values by their step, ascending; `marked` is a step that is pointed at."""

    name: str
    points: Sequence[tuple[int, float]]
    marked: int | None = None


@dataclass(frozen=True)
class Line:
    """A series where it is drawn; `kind` tells lines apart, and the legend names them."""

    name: str
    kind: int
    path: str
    mark: tuple[float, float] | None


@dataclass(frozen=True)
class Level:
    """A number on the upright axis."""

    y: float
    text: str


@dataclass(frozen=True)
class Lines:
    """The chart."""

    width: float
    height: float
    left: float
    floor: float
    lines: tuple[Line, ...]
    below: tuple[Tick, ...]
    beside: tuple[Level, ...]


def lines(series: Sequence[Series], room: Room = ON_DESK) -> Lines | None:
    """The chart of some series, each with a point at least; None for none."""
    if not series:
        return None
    width, height = (700.0, 320.0) if room.labels else (270.0, 230.0)
    steps = [step for one in series for step, _ in one.points]
    values = [value for one in series for _, value in one.points]
    first, last, step = _rounded(min(values), max(values), room.ticks)
    begin, end, stride = _rounded(min(steps), max(steps), room.ticks, least=1.0)
    floor = height - BOTTOM

    def x(value: float) -> float:
        return round(LEFT + (width - LEFT - MARGIN) * (value / stride - begin) / (end - begin), 1)

    def y(value: float) -> float:
        return round(floor - (floor - MARGIN) * (value / step - first) / (last - first), 1)

    drawn = []
    for kind, one in enumerate(series):
        every = math.ceil(len(one.points) / MOST_POINTS)
        shown = [*one.points[:-1:every], one.points[-1]]
        at = [(x(step), y(value)) for step, value in shown]
        marks = [(x(step), y(value)) for step, value in one.points if step == one.marked]
        path = "M" + "L".join(f"{across} {down}" for across, down in at)
        drawn.append(Line(one.name, kind, path, marks[0] if marks else None))
    below = tuple(Tick(x(number * stride), f"{number * stride:,.0f}") for number in range(begin, end + 1))
    places = max(0, -math.floor(math.log10(step)))
    beside = tuple(Level(y(number * step), f"{number * step:,.{places}f}") for number in range(first, last + 1))
    return Lines(width, height, LEFT, floor, tuple(drawn), below, beside)


def _rounded(low: float, high: float, ticks: int, *, least: float = 0.0) -> tuple[int, int, float]:
    """From which to which multiple of a step an axis goes, and that step; it has some length in any case."""
    step = tick_step(max((high - low) / ticks, least))
    first, last = math.floor(low / step), math.ceil(high / step)
    return first, max(last, first + 1), step


def drawn_lines(series: Sequence[Series]) -> dict[str, Lines]:
    """The chart of some series as `desk` and `hand` have room for it."""
    return in_rooms(lambda room: lines(series, room))
