"""A line an evaluation, for a training whose terminal is a file: on stderr, where a bar or table stands elsewhere.

Used by `soup train` and `soup train sweep`. What is said between two evaluations is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.progress import Progress
from service.cli.output import progress_bar, talk, to_a_person
from training.hyperparameters import Hyperparameters


class EvaluationLines:
    """What was last said of each training, which are told apart by name."""

    def __init__(self, recipe: Hyperparameters) -> None:
        self._evaluated_at = sorted({0, *recipe.evaluated_at()})
        self._said: dict[str, int] = {}

    def at(self, step: int, steps: int, message: str, *, name: str = "") -> None:
        """A training is at a step: says so where it was evaluated since it was last heard of."""
        if not steps:  # it waits for a process
            return
        latest = max(at for at in self._evaluated_at if at <= step)
        if self._said.get(name) != latest:
            self._said[name] = latest
            talk(f"{name + ': ' if name else ''}step {step} of {steps}: {message}")


@contextmanager
def training_progress(recipe: Hyperparameters) -> Iterator[Progress]:
    """The progress of one training: a bar on a terminal, elsewhere a line an evaluation."""
    if not to_a_person():
        yield EvaluationLines(recipe).at
        return
    with progress_bar("training") as report:
        yield report
