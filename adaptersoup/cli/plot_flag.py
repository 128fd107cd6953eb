"""The option `--plot FILE.svg` of verbs whose result can be plotted."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptersoup.cli.output import talk
from registry.errors import InvalidParameter

if TYPE_CHECKING:
    from plots.style import Plot


def _check_file(file: Path | None) -> Path | None:
    """The file of a plot; raises a usage error before any work is done if it could not be written."""
    if file is None:
        return None
    if file.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{file} is not an SVG file: its name must end with .svg.")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"The folder {file.parent} does not exist: make it first.")
    if find_spec("matplotlib") is None:
        raise typer.BadParameter("matplotlib is not installed: pip install 'adaptersoup[plots]'.")
    return file


PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="Save a picture of the result.", metavar="FILE.svg", callback=_check_file),
]


def save_plot(file: Path | None, draw: Callable[[], Plot]) -> None:
    """Write the plot to `file`, if there is one; raises InvalidParameter. Call it after the result is printed."""
    if file is None:
        return
    from plots.style import to_svg

    try:
        file.write_text(to_svg(draw()), encoding="utf-8")
    except OSError as error:
        raise InvalidParameter(f"{file} cannot be written: {error.strerror}.", param="plot") from None
    talk(f"{file} shows it.")
