"""The file of a training's losses: whole at any moment, bounded, and what the record has at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from training.hyperparameters import Hyperparameters
from training.loop import optimise
from training.losses_file import MAX_POINTS, LossesFile, read_losses, thinned
from training.state import Objective, TrainingState


def test_there_is_none_before_it_is_written(tmp_path: Path) -> None:
    assert read_losses(tmp_path / "losses.json") is None


@given(st.integers(0, 12_000))
def test_many_points_become_few_with_the_first_and_the_last(count: int) -> None:
    points = [(step, float(step)) for step in range(count)]
    found = thinned(points)
    assert len(found) <= MAX_POINTS + 1
    assert found == sorted(set(found) & set(points))
    assert (found[:1], found[-1:]) == (points[:1], points[-1:])
    if count <= MAX_POINTS:
        assert found == points


def test_a_disk_that_takes_none_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Linear(1, 1)
    rows = np.zeros((2, 1), dtype=np.int64)
    state = TrainingState(
        module, Objective(lambda _: module.weight.sum() ** 2), train=rows, valid=rows,
        hyperparameters=Hyperparameters(steps=3, batch=1, block=4),
    )  # fmt: skip
    place = tmp_path / "gone" / "losses.json"  # its folder is not there: as a full disk, an OSError
    assert optimise(state, losses=LossesFile(place)).train_history[-1][0] == 3
    assert "the losses of a training are not written: No such file or directory" in caplog.text
    assert read_losses(place) is None
