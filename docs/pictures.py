"""Pictures as SVG text: a heat map, and curves. Called by `docs.papers`, which knows what is in them.

Made by hand so that the same numbers are the same bytes everywhere. They follow the reader's light or dark scheme;
every cell of a heat map has its number, every curve its own marker and dashes, so colour is never alone. The table
that a picture shows stands beside it on the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
LETTER, LINE = 7.0, 13.0
"""About how wide a letter of a name is, and how high a line."""


def _svg(title: str, parts: Sequence[str], *, width: int = WIDTH, height: int = HEIGHT) -> str:
    said = escape(title)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}">'
    )
    own = [f"<title>{said}</title>", f"<style>{STYLE}</style>", _text(LEFT, 22, title, kind="title")]
    return "\n".join([head, *own, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


# --- heat map ---------------------------------------------------------------------------------------

CELL = 84


def heat_map(
    title: str, *, rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[str, str], float], left: str,
    below: str,
) -> str:  # fmt: skip
    """A square for each (row, column) that has a value, darker the larger it is, with the number in it."""
    largest = max((abs(value) for value in values.values()), default=1.0) or 1.0
    parts = []
    for i, row in enumerate(rows):
        y = TOP + i * CELL
        parts.append(_text(LEFT - 10, y + CELL / 2 + 4, row, anchor="end"))
        for j, column in enumerate(columns):
            if (row, column) in values:
                parts += _square(LEFT + j * CELL, y, values[row, column], largest)
    bottom = TOP + len(rows) * CELL
    parts += [_text(LEFT + (j + 0.5) * CELL, bottom + 18, name, anchor="middle") for j, name in enumerate(columns)]
    parts += [_text(LEFT, bottom + 38, f"{below}; on the left: {left}")]
    return _svg(title, parts, width=max(LEFT + len(columns) * CELL + 24, WIDTH), height=bottom + 52)


def _square(x: float, y: float, value: float, largest: float) -> Iterator[str]:
    """Blue where it is above zero, orange below; the number is legible on either scheme."""
    share = min(1.0, abs(value) / largest)
    colour = "#0a58a8" if value >= 0 else "#b3460b"
    yield (
        f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="{colour}" '
        f'fill-opacity="{0.08 + 0.92 * share:.3f}" stroke="{colour}"/>'
    )
    kind = "dark" if share > 0.5 else ""
    yield _text(x + CELL / 2 - 1, y + CELL / 2 + 4, f"{value:+.3f}", anchor="middle", kind=kind)


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
    return _svg(title, parts)


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
        parts += [_marker(x, y, 0), _text(at, height + 4, one.name, anchor=anchor)]
    return _svg(title, parts)


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
        yield _text(LEFT - 8, height + 4, f"{y:.3f}", anchor="end")
    for x, said in marks:
        place, _ = frame.at(x, frame.low[1])
        yield _text(place, HEIGHT - BOTTOM + 18, said, anchor="middle")
    yield f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across, anchor="middle")
    yield _text(LEFT, TOP - 6, up)


def _curve(frame: _Frame, one: Series, number: int) -> Iterator[str]:
    places = [frame.at(x, y) for x, y in one.points]
    drawn = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
    dashes = DASHES[number % COLOURS]
    yield f'<path class="line s{number % COLOURS}" stroke-dasharray="{dashes or "none"}" d="{drawn}"/>'
    yield from (_marker(x, y, number) for x, y in places)
    y = TOP + 10 + 20 * number
    x = WIDTH - RIGHT + 12
    yield f'<path class="line s{number % COLOURS}" stroke-dasharray="{dashes or "none"}" d="M{x} {y}h26"/>'
    yield _marker(x + 13, y, number)
    yield _text(x + 32, y + 4, one.name)


def _marker(x: float, y: float, number: int) -> str:
    """A disc, a square or a triangle."""
    kind = f'class="s{number % COLOURS}"'
    if number % 3 == 0:
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    if number % 3 == 1:
        return f'<rect {kind} x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    return f'<path {kind} d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'
