"""The option `--plot FILE.svg` of verbs whose result has a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from registry.errors import Unavailable
from service.cli.output import talk
from service.plots import Picture

Body = TypeVar("Body", bound=BaseModel)


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


def body_of(kind: type[Body], answer: Mapping[str, Any]) -> Body:
    """An answer as the value that a picture is drawn of; what a newer server says beside it is left out.

    Raises Unavailable for an answer that a server of this version does not give.
    """
    try:
        return kind.model_validate_json(json.dumps(answer), extra="ignore")
    except ValidationError as error:
        raise Unavailable(
            f"The server's answer is none that can be drawn ({error.error_count()} fields differ): is it of another "
            "version? --json prints it."
        ) from None
