"""The losses of a running training, in a file that other processes may read at any moment.

Written by the loop, with the field names of a training's record; read by the server's job.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.state import TrainingState

log = logging.getLogger("soup.training")
MAX_POINTS = 400
"""The most points of each of the two lists."""
Point = tuple[int, float]


class LossesFile:
    """Writes the losses of a state to `path` atomically whenever there are new ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = (0, 0)

    def note(self, state: TrainingState) -> None:
        """Write the losses if there are new ones; if the disk fails, log it and go on."""
        counts = (len(state.curve.points), len(state.history))
        if counts == self._written:
            return
        self._written = counts
        losses = {
            "train_history": thinned(state.curve.points, at_most=MAX_POINTS),
            "valid_history": thinned(state.history, at_most=MAX_POINTS),
            "best_step": state.best[1],
        }
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(losses, allow_nan=False), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            log.warning("the losses of a training are not written: %s", error.strerror)


def thinned(points: Sequence[Point], *, at_most: int, best_step: int | None = None) -> list[Point]:
    """Thin the points evenly to about `at_most`, keeping the first, the last and the best step's."""
    stride = math.ceil(len(points) / at_most)
    last = len(points) - 1
    return [
        point for number, point in enumerate(points) if number % stride == 0 or number == last or point[0] == best_step
    ]


def read_losses(path: Path) -> dict[str, Any] | None:
    """Return the content of the file; None if it does not exist yet."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
