"""The option `--plot FILE.svg` of verbs whose result has a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from service.cli.output import talk
from service.plots import Picture


def _checked(file: Path | None) -> Path | None:
    """Raises a usage error where no file can be written, before there is work done for it."""
    if file is not None and file.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{file} is to be an SVG file: let its name end with .svg.")
    if file is not None and not file.parent.is_dir():
        raise typer.BadParameter(f"{file.parent} is no folder; make it first.")
    return file


PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="File for a picture of the result.", metavar="FILE.svg", callback=_checked),
]


def save_plot(file: Path | None, draw: Callable[[], Picture]) -> None:
    """Write the picture where one was asked for. Raises InvalidParameter; what was found is printed by then."""
    if file is not None:
        draw().save(file)
        talk(f"{file} shows it.")
