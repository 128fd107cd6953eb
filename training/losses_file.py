"""The losses of a running training, in a file that other processes may read at any moment.

Written by the loop, with the field names of a training's record; read by the server's job.
"""

from __future__ import annotations

import json
import logging
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
            "train_history": thinned(state.curve.points),
            "valid_history": thinned(state.history),
            "best_step": state.best[1],
        }
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(losses, allow_nan=False), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            log.warning("the losses of a training are not written: %s", error.strerror)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Thin the points evenly to about `MAX_POINTS`, keeping the last."""
    stride = -(-len(points) // MAX_POINTS)
    return [*points[:-1:stride], points[-1]] if points else []


def read_losses(path: Path) -> dict[str, Any] | None:
    """Return the content of the file; None if it does not exist yet."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
