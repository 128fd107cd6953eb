"""The options of `generate` and `chat` that say how tokens are drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn."""

    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the likeliest.")] = 1.0
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Nucleus sampling.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop at; may be repeated.")] = None
    seed: Annotated[int | None, typer.Option(help="The same seed, the same text.")] = None

    def sampling(self) -> dict[str, Any]:
        """The same as `SoupClient` takes it."""
        return {**asdict(self), "stop": self.stop or None}
