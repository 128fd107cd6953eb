"""The losses of a training while it runs, in a file that whoever waits for it may read at any moment.

Written by the loop, under the names that the record of a training has them by; read by the server's job.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.state import TrainingState

log = logging.getLogger("soup.training")
MOST_POINTS = 400
"""Of each of the two lists."""
Point = tuple[int, float]


class LossesFile:
    """Writes the losses of a state to `path`, whole or not at all, each time that there are more of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = (0, 0)

    def note(self, state: TrainingState) -> None:
        """Write them, if there are more than the last time; where the disk takes none, the training goes on."""
        there = (len(state.curve.points), len(state.history))
        if there == self._written:
            return
        self._written = there
        said = {
            "train_history": thinned(state.curve.points), "valid_history": thinned(state.history),
            "best_step": state.best[1],
        }  # fmt: skip
        beside = self._path.with_suffix(".new")
        try:
            beside.write_text(json.dumps(said, allow_nan=False), encoding="utf-8")
            beside.replace(self._path)
        except OSError as error:
            log.warning("the losses of a training are not written: %s", error.strerror)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most about `MOST_POINTS` of the points, evenly, the last among them."""
    every = -(-len(points) // MOST_POINTS)
    return [*points[:-1:every], points[-1]] if points else []


def read_losses(path: Path) -> dict[str, Any] | None:
    """What the file says; None where there is none yet."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
