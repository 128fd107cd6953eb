"""The lineage of an adapter as a picture: what it was mixed from on the left, what was mixed from it on the right.

Only where things are is decided here; the template draws them, and a table beside it says all of it in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.http.schemas.adapters import Lineage

WIDE, HIGH, GAP, LINE = 250, 34, 10, 110
"""Of a box, between two boxes, and between two columns."""
MOST = 16
"""Boxes of a column; the table has the others."""
LETTERS = 30
"""Of a name in a box."""
THINNEST, THICKEST = 1.0, 7.0


@dataclass(frozen=True)
class Box:
    """One adapter; `ref` is where it leads, None where the key does not see it."""

    x: float
    y: float
    label: str
    title: str
    ref: str | None
    own: bool = False


@dataclass(frozen=True)
class Line:
    """From one box to another, as thick as the weight."""

    path: str
    thick: float


@dataclass(frozen=True)
class LineagePicture:
    """Everything that is drawn."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    more: int
    """Adapters that have no box."""


def lineage_picture(lineage: Lineage) -> LineagePicture | None:
    """The picture; None where an adapter has neither parents nor children."""
    parents, children = lineage.parents[:MOST], lineage.children[:MOST]
    if not parents and not children:
        return None
    rows = max(len(parents), len(children), 1)
    height = rows * (HIGH + GAP) + GAP
    middle = (WIDE + LINE if parents else 0.0, (height - HIGH) / 2)
    boxes, lines = [_box(*middle, lineage.adapter, lineage.adapter, None, own=True)], []
    for y, one in zip(_places(len(parents), height), parents, strict=True):
        name = one.ref or one.digest
        boxes.append(_box(0, y, name, f"{name}, weight {one.weight}", one.ref))
        lines.append(Line(_curve((WIDE, y), middle), _thick(one.weight)))
    right = middle[0] + WIDE + LINE
    for y, child in zip(_places(len(children), height), children, strict=True):
        boxes.append(_box(right, y, child.ref, child.ref, child.ref))
        lines.append(Line(_curve((middle[0] + WIDE, middle[1]), (right, y)), THINNEST))
    more = len(lineage.parents) + len(lineage.children) - len(parents) - len(children)
    width = (right if children else middle[0]) + WIDE
    return LineagePicture(width, height, tuple(boxes), tuple(lines), more)


def _places(count: int, height: float) -> Sequence[float]:
    """Where the boxes of a column are, in the middle of the height."""
    first = (height - count * (HIGH + GAP) + GAP) / 2
    return [first + number * (HIGH + GAP) for number in range(count)]


def _box(x: float, y: float, name: str, title: str, ref: str | None, *, own: bool = False) -> Box:
    label = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
    return Box(x, y, label, title, ref, own)


def _curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From the right edge of one box to the left edge of another."""
    (x0, y0), (x1, y1) = (start[0], start[1] + HIGH / 2), (end[0], end[1] + HIGH / 2)
    half = (x0 + x1) / 2
    return f"M{x0:.0f} {y0:.1f}C{half:.0f} {y0:.1f} {half:.0f} {y1:.1f} {x1:.0f} {y1:.1f}"


def _thick(weight: str) -> float:
    return max(THINNEST, min(THICKEST, abs(float(weight)) * THICKEST))
