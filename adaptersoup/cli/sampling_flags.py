"""The sampling options of `generate` and `chat`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import typer


def above_zero(value: float | None) -> float | None:
    """Return the value of an option; raises BadParameter unless it is above 0."""
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0.")
    return value


@dataclass(frozen=True)
class SamplingFlags:
    """The options for drawing tokens."""

    SECTION: ClassVar[str] = "Sampling"
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 always takes the likeliest token.")] = 1.0
    top_p: Annotated[
        float | None,
        typer.Option(
            max=1,
            callback=above_zero,
            help="Nucleus sampling: draw from the likeliest tokens of this total probability, above 0.",
        ),
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop at; repeatable.")] = None
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same text.")] = None

    def fields(self) -> dict[str, Any]:
        """The options as keyword arguments of `SoupClient.complete` and `chat`."""
        return {**asdict(self), "stop": self.stop or None}
