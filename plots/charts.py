"""Kinds of figures: panels of bars and intervals, series with intervals, lines, points, heat maps, lineages.

Every function returns a new figure. Rows have their numbers beside them and series have different markers, so that no
information is in the colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from plots.style import LIGHT, MARKERS, Plot, Theme, add_legend, new_plot, printable, style_axes

WIDTH = 560.0
ROW, PANEL_FRAME, LINE = 17.0, 42.0, 14.0
"""Heights in points: a row of a panel, a panel's caption and axis, and a line of text."""
MAX_ROWS = 50
NAME_OFFSETS = ((7, 0), (-7, 0), (7, 11), (-7, 11), (7, -11), (-7, -11))
"""Positions of a name relative to its point, to the right and up, in points."""
LABEL_LETTERS, TITLE_LETTERS, LINE_LETTERS, CAPTION_LETTERS = 38, 80, 90, 66
HATCHES = ("", "//", "..", "xx")
MAX_LINEAGE = 16
"""Adapters in a column of a lineage; the page's tables have all."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """A horizontal bar with its label and its value as text, drawn as an outline unless `chosen`."""

    label: str
    value: float
    text: str
    chosen: bool = True


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval, drawn as an outline unless `chosen`; `text` is shown for its numbers."""

    label: str
    value: float
    low: float
    high: float
    chosen: bool = False
    text: str = ""

    @classmethod
    def around(cls, label: str, value: float, half_width: float, *, chosen: bool = False) -> Interval:
        """An interval that is symmetric around its value."""
        return cls(label, value, value - half_width, value + half_width, chosen)


@dataclass(frozen=True)
class Panel:
    """Rows of one kind under a caption."""

    caption: str
    rows: Sequence[Bar | Interval]


@dataclass(frozen=True)
class CategoryAxis:
    """An axis of a heat map: its label and the names of its rows or columns."""

    label: str
    names: Sequence[str]


@dataclass(frozen=True)
class Series:
    """A line's name and points (x, y); `marked` is the x of a point to highlight."""

    name: str
    points: Sequence[Point]
    marked: float | None = None


def panels(title: str, sentences: Sequence[str], panels: Sequence[Panel], *, theme: Theme = LIGHT) -> Plot:
    """Panels below each other under a title and sentences; panels without rows are left out."""
    panels = [panel for panel in panels if panel.rows]
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, LINE_LETTERS)]
    heights = [
        PANEL_FRAME + LINE * (len(panel.caption) // CAPTION_LETTERS) + ROW * min(len(panel.rows), MAX_ROWS)
        for panel in panels
    ]
    head = "\n".join([shorten(title, TITLE_LETTERS), *lines]) if title else ""
    figure = new_plot(WIDTH, sum(heights) + LINE * (len(lines) + 2 if title else 0) + 8, theme)
    if head:
        figure.suptitle(head, x=0.01, ha="left", fontsize=10, color=theme.ink)
    grid = figure.subplots(len(panels), height_ratios=heights, squeeze=False) if panels else np.empty((0, 1))
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, panel, theme)
    return figure


def _draw_panel(axes: Axes, panel: Panel, theme: Theme) -> None:
    rows, hidden = panel.rows[:MAX_ROWS], len(panel.rows) - MAX_ROWS
    caption = panel.caption + (f" ({hidden} more rows are not shown)" if hidden > 0 else "")
    axes.set_title("\n".join(textwrap.wrap(caption, CAPTION_LETTERS)), loc="left", fontsize=9, color=theme.ink)
    _name_ticks(axes.yaxis, range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=theme.muted, linewidth=1)
    colour = theme.series[0]
    for position, row in enumerate(rows):
        fill = colour if row.chosen else theme.ground
        if isinstance(row, Bar):
            axes.barh(position, row.value, height=0.62, facecolor=fill, edgecolor=colour)
            text = row.text
        else:
            axes.plot([row.low, row.high], [position, position], color=colour, linewidth=1.6)
            axes.plot(row.value, position, marker="o", markersize=6, markerfacecolor=fill, markeredgecolor=colour)
            half = (row.high - row.low) / 2
            text = row.text or f"{row.value:+.4f}" + (f" ± {half:.4f}" if half > 0 else "")
        axes.text(1.01, position, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=theme.ink)
    style_axes(axes, theme, grid="x")
    axes.spines["left"].set_visible(False)


def interval_series(
    title: str,
    *,
    rows: Sequence[str],
    series: Mapping[str, Mapping[str, tuple[float, float, float]]],
    x_label: str,
    theme: Theme = LIGHT,
) -> Plot:
    """A mark with its interval for every row and series; `series` has (value, low, high) by row."""
    figure = new_plot(WIDTH, 90 + len(rows) * (10 + 11 * len(series)), theme)
    axes = figure.subplots()
    for number, (name, values) in enumerate(series.items()):
        shift = 0.7 * ((number + 0.5) / len(series) - 0.5)
        positions = [position + shift for position, row in enumerate(rows) if row in values]
        intervals = np.array([values[row] for row in rows if row in values])  # (rows, 3)
        axes.errorbar(
            intervals[:, 0],
            positions,
            xerr=np.abs(intervals[:, 1:] - intervals[:, :1]).T,
            label=name,
            linestyle="none",
            capsize=2,
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            color=theme.series[number % len(theme.series)],
        )
    axes.axvline(0, color=theme.muted, linewidth=1)
    _name_ticks(axes.yaxis, range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _finish(figure, axes, theme, title=title, x_label=x_label, grid="x")
    return figure


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    theme: Theme = LIGHT,
) -> Plot:
    """Lines over one axis. Each series needs a point."""
    figure = new_plot(WIDTH, 290, theme)
    axes = figure.subplots()
    for number, line in enumerate(series):
        points = sorted(line.points)
        colour = theme.series[number % len(theme.series)]
        marker = MARKERS[number % len(MARKERS)] if len(points) <= MAX_ROWS else ""
        axes.plot(*zip(*points, strict=True), label=line.name, color=colour, marker=marker, markersize=4, linewidth=1.6)
        axes.plot(
            *zip(*[p for p in points if p[0] == line.marked] or [(np.nan, np.nan)], strict=True),
            "o",
            markersize=10,
            markerfacecolor="none",
            markeredgecolor=theme.ink,
        )
    _finish(figure, axes, theme, title=title, x_label=x_label, y_label=y_label, grid="y")
    return figure


def points(
    title: str,
    places: Mapping[str, Point],
    *,
    x_label: str,
    y_label: str,
    ticks: Sequence[float],
    theme: Theme = LIGHT,
) -> Plot:
    """Named points over a logarithmic axis."""
    figure = new_plot(WIDTH, 320, theme, constrained=False)
    axes = figure.add_axes((0.1, 0.13, 0.7, 0.78))
    _set_logarithmic(axes, ticks)
    _scatter(axes, places, {}, theme, show_all_names=True)
    _finish(figure, axes, theme, title=title, x_label=x_label, y_label=y_label, grid="y")
    return figure


def domain_map(places: Mapping[str, Point], text: Point | None = None, *, theme: Theme = LIGHT) -> Plot:
    """Domains and a text in two dimensions of equal scale, with the names that do not overlap."""
    figure = new_plot(680, 440, theme, constrained=False)
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
    axes.set_aspect("equal", adjustable="datalim")
    _scatter(axes, places, {} if text is None else {"your text": text}, theme)
    style_axes(axes, theme)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=theme.grid)
    return figure


def _scatter(
    axes: Axes, places: Mapping[str, Point], special: Mapping[str, Point], theme: Theme, *, show_all_names: bool = False
) -> None:
    """Draw points and the names that do not overlap, special points first; with `show_all_names` every name."""
    named = {**special, **places}
    coordinates = np.array(list(named.values()), dtype=float)
    axes.plot(*np.array(list(places.values())).T, "o", markersize=6, color=theme.series[0])
    if special:
        axes.plot(*np.array(list(special.values())).T, "D", markersize=9, color=theme.series[1])
    axes.margins(0.12)
    axes.apply_aspect()
    axes.autoscale_view()
    scale = 72 / axes.figure.dpi
    positions = axes.transData.transform(coordinates) * scale
    occupied = np.hstack([positions - 4, positions + 4])  # (boxes, left bottom right top)
    left_edge, right_edge = scale * axes.bbox.x0, scale * axes.bbox.x1 + (90 if show_all_names else 0)
    for name, (x, y) in zip(named, positions, strict=True):
        width = 5.2 * len(name)
        for right, up in NAME_OFFSETS if show_all_names else NAME_OFFSETS[:2]:
            begin = x + right - (width if right < 0 else 0)
            box = np.array([begin, y + up - 6, begin + width, y + up + 6])
            overlaps = np.any(np.all((occupied[:, :2] < box[2:]) & (box[:2] < occupied[:, 2:]), axis=1))
            if not overlaps and left_edge <= begin and begin + width <= right_edge:
                break
        else:
            if not show_all_names:
                continue
        occupied = np.vstack([occupied, box])
        axes.annotate(
            name,
            named[name],
            xytext=(right, up),
            textcoords="offset points",
            ha="left" if right > 0 else "right",
            va="center",
            fontsize=9,
            color=theme.ink,
            weight="bold" if name in special else "normal",
        )


def heat_map(
    title: str,
    values: Mapping[tuple[str, str], float],
    *,
    rows: CategoryAxis,
    columns: CategoryAxis,
    number: str = "+.3f",
    theme: Theme = LIGHT,
) -> Plot:
    """A cell with its number in this format for each (row, column) with a value, darker with the distance from zero."""
    figure = new_plot(max(WIDTH, 150 + 50 * len(columns.names)), 130 + 22 * len(rows.names), theme)
    axes = figure.subplots()
    cells = [values.get((row, column), np.nan) for row in rows.names for column in columns.names]
    matrix = np.array(cells, dtype=float).reshape(len(rows.names), len(columns.names))
    largest = max((abs(value) for value in values.values()), default=0.0) or 1.0
    colours = LinearSegmentedColormap.from_list("around zero", [theme.negative, theme.ground, theme.positive])
    axes.pcolormesh(matrix, cmap=colours, vmin=-largest, vmax=largest, edgecolors=theme.ground, linewidth=1)
    for (row, column), value in np.ndenumerate(matrix):
        if not np.isnan(value):
            colour = theme.ground if abs(value) > 0.6 * largest else theme.ink
            axes.text(column + 0.5, row + 0.5, f"{value:{number}}", ha="center", va="center", fontsize=8, color=colour)
    is_rotated = max(map(len, columns.names), default=0) > 8
    rotation, anchor = (40, "right") if is_rotated else (0, "center")
    _name_ticks(axes.xaxis, np.arange(len(columns.names)) + 0.5, columns.names, rotation=rotation, ha=anchor)
    _name_ticks(axes.yaxis, np.arange(len(rows.names)) + 0.5, rows.names)
    axes.invert_yaxis()
    _finish(figure, axes, theme, title=title, x_label=columns.label, y_label=rows.label)
    return figure


def stacked_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], *, x_label: str = "", theme: Theme = LIGHT
) -> Plot:
    """A bar for each label with a segment for each series."""
    figure = new_plot(WIDTH, 80 + ROW * (len(labels) + len(series) / 2), theme)
    axes = figure.subplots()
    ends = np.zeros(len(labels))
    for number, (name, values) in enumerate(series.items()):
        axes.barh(
            range(len(labels)),
            values,
            left=ends,
            height=0.7,
            label=shorten(name, LABEL_LETTERS),
            color=theme.series[number % len(theme.series)],
            edgecolor=theme.ground,
            hatch=HATCHES[number % len(HATCHES)],
        )
        ends = ends + np.asarray(values)
    _name_ticks(axes.yaxis, range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xlabel(x_label)
    style_axes(axes, theme, grid="x")
    add_legend(figure, axes, theme, columns=2)
    return figure


def lineage(name: str, parents: Sequence[tuple[str, float]], children: Sequence[str], *, theme: Theme = LIGHT) -> Plot:
    """An adapter between its ingredients, with weights as the thickness of lines, and the soups mixed from it."""
    parents, children = parents[:MAX_LINEAGE], children[:MAX_LINEAGE]
    rows = max(len(parents), len(children), 1)
    figure = new_plot(680, 24 + 26 * rows, theme, constrained=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(rows, 0))
    axes.set_axis_off()
    middle = rows / 2
    for number, (parent, weight) in enumerate(parents):
        y = middle + number + 0.5 - len(parents) / 2
        axes.plot([0.17, 0.5], [y, middle], color=theme.muted, linewidth=min(7, max(1, 7 * abs(weight))))
        _draw_box(axes, 0.17, y, f"{parent}, {weight:.2g}", theme)
    for number, child in enumerate(children):
        y = middle + number + 0.5 - len(children) / 2
        axes.plot([0.5, 0.83], [middle, y], color=theme.muted, linewidth=1)
        _draw_box(axes, 0.83, y, child, theme)
    _draw_box(axes, 0.5, middle, name, theme, colour=theme.series[1])
    return figure


def _draw_box(axes: Axes, x: float, y: float, text: str, theme: Theme, *, colour: str | None = None) -> None:
    box = {"boxstyle": "round,pad=0.4", "facecolor": theme.ground, "edgecolor": colour or theme.muted}
    axes.text(x, y, shorten(text, 32), ha="center", va="center", fontsize=9, color=theme.ink, bbox=box)


def _name_ticks(axis: Axis, positions: Sequence[float] | NDArray[Any], names: Sequence[str], **text: Any) -> None:
    """Set names as tick labels. Formulas are disabled here because matplotlib recreates tick labels when it draws."""
    axis.set_ticks(positions, [shorten(printable(name), LABEL_LETTERS) for name in names], parse_math=False, **text)


def _set_logarithmic(axes: Axes, ticks: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _finish(
    figure: Plot,
    axes: Axes,
    theme: Theme,
    *,
    title: str,
    x_label: str,
    y_label: str = "",
    grid: Literal["x", "y"] | None = None,
) -> None:
    """Set the labels, the style, the title and, if there are series, the legend."""
    axes.set(xlabel=x_label, ylabel=y_label)
    style_axes(axes, theme, grid=grid)
    axes.set_title(shorten(title, TITLE_LETTERS), loc="left", fontsize=10, color=theme.ink)
    if axes.get_legend_handles_labels()[0]:
        add_legend(figure, axes, theme)


def shorten(text: str, letters: int) -> str:
    """The text, or if it is longer its beginning and its end, which has the version of a name."""
    return text if len(text) <= letters else f"{text[: letters - letters // 3 - 1]}…{text[-(letters // 3) :]}"
