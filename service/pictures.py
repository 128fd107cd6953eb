"""Pictures as SVG text: heat maps, curves, marks, intervals, maps. Called by `plots`, `soup compare` and `docs`.

Made by hand so that the same numbers are the same bytes everywhere. They follow the reader's light or dark scheme;
every cell of a heat map has its number, every curve or interval its own marker and dashes, so colour is never alone.
The table that a picture shows stands beside it on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 680, 380
LEFT, RIGHT, TOP, BOTTOM = 72, 190, 44, 52
STYLE = (
    "text{font:12px sans-serif;fill:#1f2328}.axis{stroke:#59636e;stroke-width:1;fill:none}"
    ".grid{stroke:#d1d9e0;stroke-width:1}.title{font-weight:bold;font-size:14px}.dark{fill:#fff}"
    ".s0{stroke:#0a58a8;fill:#0a58a8}.s1{stroke:#b3460b;fill:#b3460b}.s2{stroke:#1a7f37;fill:#1a7f37}"
    ".s3{stroke:#8250df;fill:#8250df}.s4{stroke:#7a5a00;fill:#7a5a00}.s5{stroke:#bf3989;fill:#bf3989}"
    ".line{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.axis{stroke:#9198a1}.grid{stroke:#3d444d}"
    ".s0{stroke:#6cb6ff;fill:#6cb6ff}.s1{stroke:#ffa657;fill:#ffa657}.s2{stroke:#56d364;fill:#56d364}"
    ".s3{stroke:#d2a8ff;fill:#d2a8ff}.s4{stroke:#e3b341;fill:#e3b341}.s5{stroke:#ff9bce;fill:#ff9bce}.line{fill:none}}"
)
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "12 3")
COLOURS = len(DASHES)
LETTER, LINE, LEAN = 7.0, 13.0, 0.65
"""About how wide a letter of a name is, how high a line, and how far down a leaning letter reaches."""


def svg(
    title: str, parts: Sequence[str], *, width: int = WIDTH, height: int = HEIGHT, style: str = STYLE,
    left: int = LEFT, ground: str = "",
) -> str:  # fmt: skip
    """A picture of these parts, as a whole file: its title `left` above them, all on the `ground`."""
    said = _shown(title)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}">'
    )
    own = [f"<title>{said}</title>", f"<style>{style}</style>", ground, text_at(left, 22, title, kind="title")]
    return "\n".join([head, *filter(None, own), *parts, "</svg>", ""])


def text_at(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    """A line of text; `anchor` says which end of it is at `x`."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{_shown(text)}</text>'


def _shown(text: str) -> str:
    """Text of others; what is no printable character is shown as `?`: most of them may not stand in XML."""
    return escape("".join(c if c.isprintable() else "?" for c in text))


# --- heat map ---------------------------------------------------------------------------------------

CELL = 84


def heat_map(
    title: str, *, rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[str, str], float], left: str,
    below: str, cell: tuple[int, int] = (CELL, CELL), decimals: int = 3,
) -> str:  # fmt: skip
    """A field for each (row, column) that has a value, darker the larger it is, with the number in it."""
    wide, high = cell
    largest = max((abs(value) for value in values.values()), default=1.0) or 1.0
    start = max(LEFT, 20 + round(LETTER * max(map(len, rows), default=0)))
    parts = []
    for i, row in enumerate(rows):
        y = TOP + i * high
        parts.append(text_at(start - 10, y + high / 2 + 4, row, anchor="end"))
        for j, column in enumerate(columns):
            if (row, column) in values:
                parts += _field(start + j * wide, y, cell, values[row, column], largest, decimals)
    bottom = TOP + len(rows) * high
    longest = max(map(len, columns), default=0) * LETTER
    if longest <= wide:
        parts += [
            text_at(start + (j + 0.5) * wide, bottom + 18, name, anchor="middle") for j, name in enumerate(columns)
        ]
    else:  # the names lean, each ending below its column
        parts += [_leaning(start + (j + 0.6) * wide, bottom + 14, name) for j, name in enumerate(columns)]
        bottom += round(longest * LEAN)
    parts += [text_at(LEFT, bottom + 38, f"{below}; on the left: {left}")]
    return svg(title, parts, width=max(start + len(columns) * wide + 24, WIDTH), height=bottom + 52)


def _leaning(x: float, y: float, text: str) -> str:
    return f'<text transform="translate({x:.1f} {y:.1f}) rotate(-40)" text-anchor="end">{_shown(text)}</text>'


def _field(
    x: float, y: float, cell: tuple[int, int], value: float, largest: float, decimals: int
) -> Iterator[str]:  # fmt: skip
    """Blue where it is above zero, orange below; the number is legible on either scheme."""
    share = min(1.0, abs(value) / largest)
    colour = "#0a58a8" if value >= 0 else "#b3460b"
    yield (
        f'<rect x="{x}" y="{y}" width="{cell[0] - 2}" height="{cell[1] - 2}" fill="{colour}" '
        f'fill-opacity="{0.08 + 0.92 * share:.3f}" stroke="{colour}"/>'
    )
    kind = "dark" if share > 0.5 else ""
    yield text_at(x + cell[0] / 2 - 1, y + cell[1] / 2 + 4, f"{value:+.{decimals}f}", anchor="middle", kind=kind)


# --- intervals --------------------------------------------------------------------------------------

ROW = 46


def intervals(
    title: str, *, rows: Sequence[str], series: Mapping[str, Mapping[str, tuple[float, float]]], across: str
) -> str:
    """For each row a mark and its interval (middle, reach) of each series that has one, over one axis with a zero."""
    ends = [
        end for one in series.values() for middle, reach in one.values() for end in (middle - reach, middle + reach)
    ]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    start = max(LEFT, 20 + round(LETTER * max(map(len, rows), default=0)))
    bottom = TOP + len(rows) * ROW

    def at(value: float) -> float:
        return start + (value - low) / (high - low or 1.0) * (WIDTH - RIGHT - start)

    parts = []
    for part in range(5):
        value = low + part / 4 * (high - low)
        parts.append(f'<line class="grid" x1="{at(value):.1f}" y1="{TOP}" x2="{at(value):.1f}" y2="{bottom}"/>')
        parts.append(text_at(at(value), bottom + 18, f"{value:.0f}", anchor="middle"))
    parts.append(f'<path class="axis" d="M{at(0):.1f} {TOP}V{bottom}"/>')
    for i, row in enumerate(rows):
        parts.append(text_at(start - 10, TOP + (i + 0.5) * ROW + 4, row, anchor="end"))
        for number, one in enumerate(series.values()):
            if row in one:
                y = TOP + i * ROW + (number + 1) * ROW / (len(series) + 1)
                parts += _interval(at, *one[row], y, number)
    parts += [part for number, name in enumerate(series) for part in _key(number, name)]
    parts.append(text_at(start, bottom + 38, across))
    return svg(title, parts, height=bottom + 52)


def _interval(at: Callable[[float], float], middle: float, reach: float, y: float, number: int) -> Iterator[str]:
    kind = f"line s{number % COLOURS}"
    line, dashes = f"M{at(middle - reach):.1f} {y:.1f}H{at(middle + reach):.1f}", DASHES[number % COLOURS]
    yield f'<path class="{kind}" stroke-dasharray="{dashes or "none"}" d="{line}"/>'
    yield _marker(at(middle), y, number)


# --- map --------------------------------------------------------------------------------------------

MAP_WIDTH, MAP_HEIGHT = 900, 640
NAMES = (
    ".new{font-weight:bold}.name{paint-order:stroke;stroke:#fff;stroke-width:3}"
    "@media(prefers-color-scheme:dark){.name{stroke:#0d1117}}"
)
"""Style of names on a map: on a rim of the page's colour, so that lines behind them leave them legible."""
THICKEST = 5.0
"""Of a line whose weight is 1."""
AROUND = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))
"""Where a name may stand beside its mark, the best first, at one of these distances."""
DISTANCES = (9, 20, 32, 46, 62, 80, 100, 125, 150, 180)
Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def domain_map(
    title: str, *, known: Mapping[str, Point], new: Mapping[str, Point], lines: Mapping[tuple[str, str], float],
    named: tuple[str, str], across: str, up: str,
) -> str:  # fmt: skip
    """Two kinds of named points, and lines from new to known ones, the thicker the more weight (at most 1) they have.

    Names stand where they meet no mark and no other name; one that had to move away has a thin line to its mark.
    """
    low, high = (
        [end(point[axis] for point in [*known.values(), *new.values()]) for axis in (0, 1)] for end in (min, max)
    )
    frame = (low, [top - bottom or 1.0 for top, bottom in zip(high, low, strict=True)])
    places = {name: _on_map(point, *frame) for name, point in [*known.items(), *new.items()]}
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{MAP_HEIGHT - BOTTOM}H{MAP_WIDTH - LEFT}"/>']
    parts += [_link(places[one], places[other], weight) for (one, other), weight in lines.items()]
    parts += [_marker(*places[name], int(name in new)) for name in places]
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in places.values()]
    for name in sorted(places, key=lambda name: places[name]):
        parts += _name(name, places[name], taken, new=name in new)
    for number, said in enumerate(named):
        x = MAP_WIDTH - LEFT - 150 + 0.0
        parts += [_marker(x, 18 + 16.0 * number, number), text_at(x + 10, 22 + 16 * number, said)]
    parts += [text_at(MAP_WIDTH / 2, MAP_HEIGHT - 16, across, anchor="middle"), text_at(LEFT, TOP - 6, up)]
    return svg(title, parts, width=MAP_WIDTH, height=MAP_HEIGHT, style=STYLE + NAMES)


def _on_map(point: Point, low: Sequence[float], spans: Sequence[float]) -> Point:
    """Where a point is, with room at the edges for names."""
    x, y = ((value - start) / span for value, start, span in zip(point, low, spans, strict=True))
    return LEFT + 70 + x * (MAP_WIDTH - 2 * LEFT - 140), MAP_HEIGHT - BOTTOM - 30 - y * (MAP_HEIGHT - TOP - BOTTOM - 60)


def _link(one: Point, other: Point, weight: float) -> str:
    (x1, y1), (x2, y2) = one, other
    return (
        f'<line class="s1" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-opacity="0.75" '
        f'stroke-width="{max(0.7, THICKEST * weight):.1f}"/>'
    )


def _name(name: str, at: Point, taken: list[Box], *, new: bool) -> Iterator[str]:
    """A name at the first place that is free, which is then `taken`."""
    places = [(box, side, far) for far in DISTANCES for side in AROUND if (box := _beside(name, at, side, far))]
    box, side, far = next((place for place in places if not _covers(place[0], taken)), places[0])
    taken.append(box)
    x, anchor = {1: (box[0], "start"), -1: (box[2], "end")}.get(side[0], ((box[0] + box[2]) / 2, "middle"))
    if far > DISTANCES[0]:
        yield f'<path class="axis" d="M{at[0]:.1f} {at[1]:.1f}L{x:.1f} {(box[1] + box[3]) / 2:.1f}"/>'
    yield text_at(x, box[3] - 3, name, anchor=anchor, kind="name new" if new else "name")


def _beside(name: str, at: Point, side: tuple[int, int], far: float) -> Box | None:
    """The box of a name that begins so far from its mark on one side of it, where that is on the map."""
    wide, (x, y) = LETTER * len(name), at
    left = x + side[0] * far - (0.5 - side[0] / 2) * wide
    middle = y + side[1] * (far + LINE / 2 - 4)
    box = (left, middle - LINE / 2, left + wide, middle + LINE / 2)
    inside = box[0] > LEFT + 4 and box[2] < MAP_WIDTH - 4 and box[1] > TOP and box[3] < MAP_HEIGHT - BOTTOM - 2
    return box if inside else None


def _covers(box: Box, taken: Sequence[Box]) -> bool:
    return any(box[0] < one[2] and one[0] < box[2] and box[1] < one[3] and one[1] < box[3] for one in taken)


# --- curves -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One curve: its name and its points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Frame:
    """Where values are on the picture."""

    low: tuple[float, float]
    high: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        spans = [high - low or 1.0 for low, high in zip(self.low, self.high, strict=True)]
        across = LEFT + (x - self.low[0]) / spans[0] * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - self.low[1]) / spans[1] * (HEIGHT - TOP - BOTTOM)


def curves(
    title: str, series: Sequence[Series], *, across: str, up: str, logarithmic: bool = False,
    ticks: Sequence[float] = (),
) -> str:  # fmt: skip
    """Curves over one axis, with `logarithmic` in powers of ten; raises ValueError where there is no point.

    Of `ticks` those are shown that lie within; without any a logarithmic axis has one at each point.
    """
    scaled = [
        Series(one.name, [(math.log10(x) if logarithmic else x, y) for x, y in sorted(one.points)]) for one in series
    ]
    frame, parts = _framed(scaled, across, up, logarithmic=logarithmic, ticks=ticks)
    for number, one in enumerate(scaled):
        parts += _curve(frame, one, number)
    return svg(title, parts)


def marks(
    title: str, points: Mapping[str, tuple[float, float]], *, across: str, up: str, ticks: Sequence[float]
) -> str:
    """Named points (x, y) over a logarithmic axis, the name beside each; raises ValueError where there is none."""
    scaled = [Series(name, [(math.log10(x), y)]) for name, (x, y) in points.items()]
    frame, parts = _framed(scaled, across, up, logarithmic=True, ticks=ticks)
    taken: list[tuple[float, float, float]] = []
    for one in sorted(scaled, key=lambda one: one.points[0][::-1]):
        x, y = frame.at(*one.points[0])
        wide = LETTER * len(one.name)
        places = [(low, low + wide, y + shift) for shift in (0, -LINE, LINE) for low in (x + 8, x - 8 - wide)]
        low, high, height = next((place for place in places if not _meets(place, taken)), places[0])
        taken.append((low, high, height))
        anchor, at = ("start", low) if low > x else ("end", high)
        parts += [_marker(x, y, 0), text_at(at, height + 4, one.name, anchor=anchor)]
    return svg(title, parts)


def _meets(place: tuple[float, float, float], taken: Sequence[tuple[float, float, float]]) -> bool:
    low, high, height = place
    return any(abs(height - y) < LINE and low < right and left < high for left, right, y in taken)


def _framed(
    scaled: Sequence[Series], across: str, up: str, *, logarithmic: bool, ticks: Sequence[float]
) -> tuple[_Frame, list[str]]:
    """Where points are, already in logarithms, and the axes around them."""
    xs, ys = ([point[axis] for one in scaled for point in one.points] for axis in (0, 1))
    room = 0.05 * (max(ys) - min(ys)) or 0.05
    frame = _Frame((min(xs), min(ys) - room), (max(xs), max(ys) + room))
    if ticks:
        marked = [(math.log10(tick) if logarithmic else tick, f"{tick:g}") for tick in ticks]
        marked = [(x, said) for x, said in marked if frame.low[0] <= x <= frame.high[0]]
    elif logarithmic:
        marked = [(x, f"{10**x:.0e}") for x in sorted(set(xs))]
    else:
        marked = [(x, f"{x:g}") for part in range(5) for x in [min(xs) + part / 4 * (max(xs) - min(xs))]]
    return frame, list(_axes(frame, across, up, marked))


def _axes(frame: _Frame, across: str, up: str, marks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for part in range(5):
        y = frame.low[1] + part / 4 * (frame.high[1] - frame.low[1])
        _, height = frame.at(frame.low[0], y)
        yield f'<line class="grid" x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - RIGHT}" y2="{height:.1f}"/>'
        yield text_at(LEFT - 8, height + 4, f"{y:.3f}", anchor="end")
    for x, said in marks:
        place, _ = frame.at(x, frame.low[1])
        yield text_at(place, HEIGHT - BOTTOM + 18, said, anchor="middle")
    yield f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
    yield text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across, anchor="middle")
    yield text_at(LEFT, TOP - 6, up)


def _curve(frame: _Frame, one: Series, number: int) -> Iterator[str]:
    places = [frame.at(x, y) for x, y in one.points]
    drawn = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
    dashes = DASHES[number % COLOURS]
    yield f'<path class="line s{number % COLOURS}" stroke-dasharray="{dashes or "none"}" d="{drawn}"/>'
    yield from (_marker(x, y, number) for x, y in places)
    yield from _key(number, one.name)


def _key(number: int, name: str) -> Iterator[str]:
    """What a curve or a series is called, at the right of the picture."""
    x, y, dashes = WIDTH - RIGHT + 12, TOP + 10 + 20 * number, DASHES[number % COLOURS]
    yield f'<path class="line s{number % COLOURS}" stroke-dasharray="{dashes or "none"}" d="M{x} {y}h26"/>'
    yield _marker(x + 13, y, number)
    yield text_at(x + 32, y + 4, name)


def _marker(x: float, y: float, number: int) -> str:
    """A disc, a square, a triangle or a diamond."""
    kind = f'class="s{number % COLOURS}"'
    if number % 4 == 0:
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    if number % 4 == 1:
        return f'<rect {kind} x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    if number % 4 == 2:
        return f'<path {kind} d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'
    return f'<path {kind} d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"/>'
