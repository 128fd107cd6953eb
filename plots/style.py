"""The themes and common elements of figures, and their conversion to SVG."""

from __future__ import annotations

import base64
import io
import threading
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

ThemeName = Literal["light", "dark"]
_SAVING = threading.Lock()


@dataclass(frozen=True)
class Theme:
    """Colours of a figure; `series` has one for each series, which also have different markers."""

    ink: str
    muted: str
    grid: str
    ground: str
    series: tuple[str, ...]
    positive: str
    negative: str


LIGHT = Theme(
    ink="#23211d",
    muted="#5f5a51",
    grid="#ddd6c9",
    ground="#ffffff",
    series=("#2b5f8a", "#8f3a14", "#3c7242", "#7a4a8c", "#6b6a1e", "#9a3358", "#1f6f70", "#59606b"),
    positive="#0a58a8",
    negative="#b3460b",
)
DARK = Theme(
    ink="#ebe6dc",
    muted="#b3ab9c",
    grid="#3a362f",
    ground="#1f1d1a",
    series=("#8bbce6", "#f0a47b", "#86cf9f", "#c9a2dd", "#d9d77a", "#f2a1c0", "#7fd0d1", "#b3bac6"),
    positive="#6cb6ff",
    negative="#ffa657",
)
THEMES: dict[ThemeName, Theme] = {"light": LIGHT, "dark": DARK}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Plot(Figure):
    """A matplotlib figure that notebooks show as SVG, and that shows every text literally."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure without formulas (`$` is a dollar sign) and with `?` for control characters."""
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            text.set_parse_math(False)
            text.set_text(printable(text.get_text()))
        super().draw(renderer)

    def _repr_html_(self) -> str:
        """An image element for notebooks, which isolates its styles from those of the page."""
        data = base64.b64encode(to_svg(self).encode()).decode()
        return f'<img alt="Plot" src="data:image/svg+xml;base64,{data}">'


def printable(text: str) -> str:
    """The text with `?` for characters that are not printable, most of which XML forbids."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def new_plot(width: float, height: float, theme: Theme, *, constrained: bool = True) -> Plot:
    """An empty figure of this size in points; if `constrained`, its axes leave room for their labels."""
    layout: Literal["constrained"] | None = "constrained" if constrained else None
    figure = Plot(figsize=(width / 72, height / 72), facecolor=theme.ground, layout=layout)
    FigureCanvasSVG(figure)
    return figure


def style_axes(axes: Axes, theme: Theme, *, grid: Literal["x", "y", "both"] | None = None) -> None:
    """Apply the theme's colours, and hide the top and right spine."""
    axes.set_facecolor(theme.ground)
    axes.tick_params(colors=theme.muted, labelcolor=theme.ink, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.muted)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(theme.ink)
        label.set_fontsize(9)
    if grid is not None:
        axes.grid(axis=grid, color=theme.grid, linewidth=0.6)
        axes.set_axisbelow(True)


def add_legend(figure: Figure, axes: Axes, theme: Theme, *, columns: int = 3) -> None:
    """Add a legend with the names of the series above the axes."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper left", ncols=columns, frameon=False, fontsize=9, labelcolor=theme.ink
    )


def to_svg(figure: Figure) -> str:
    """The figure as deterministic SVG. Thread-safe."""
    file = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    with _SAVING, mpl.rc_context(), warnings.catch_warnings():
        mpl.rcParams["svg.fonttype"] = "none"  # text remains text, which is small and can be searched
        mpl.rcParams["svg.hashsalt"] = "adaptersoup"  # the same figure gives the same bytes
        # matplotlib measures text with its own font; the reader's browser has glyphs for other scripts
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()
