"""Trainings that are stopped, killed, or gone on from the wrong place."""

from __future__ import annotations

import fcntl
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from registry.adapters import paper_config
from registry.adapters.weights import save_tensors
from registry.errors import Cancelled, Conflict, InvalidParameter, Unavailable
from tests.training.conftest import TEXTS, VALID, train_on
from training.checkpoint import FILE, Checkpoint, Saving, discard, locked
from training.hyperparameters import Hyperparameters
from training.loop import optimise
from training.state import Objective, TrainingState

pytestmark = pytest.mark.slow

BLOCKS = np.random.default_rng(1).integers(0, 6, (20, 5))
RECIPE = Hyperparameters(steps=12, batch=4, block=32, learning_rate=1e-2, evaluations=3)


class Noisy(nn.Module):
    """A bigram model with dropout and a buffer that changes: what it becomes hangs on every random number."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, 6))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def mean_nll(self, blocks):
        if torch.is_grad_enabled():
            self.seen += len(blocks)
        rows = nn.functional.dropout(self.table, 0.3, training=torch.is_grad_enabled())[blocks[:, :-1]]
        return nn.functional.cross_entropy((rows * self.scale).flatten(0, 1), blocks[:, 1:].flatten())


def noisy(
    folder: Path | None = None, *, stop_after: int | None = None, every: int | None = 2, valid=BLOCKS[:4], **changes
):
    module, seen = Noisy(), []
    values = {"steps": 11, "batch": 3, "accumulate": 2, "block": 5, "learning_rate": 0.05, "evaluations": 4, **changes}
    numbers = Hyperparameters(**values)
    saving = None if folder is None else Saving(folder, every_steps=every, every_seconds=None)
    state = TrainingState(module, Objective(module.mean_nll), train=BLOCKS, valid=valid, hyperparameters=numbers)
    outcome = optimise(
        state,
        progress=lambda step, *_: seen.append(step),
        should_stop=None if stop_after is None else lambda: len(seen) == stop_after,
        checkpoint=None if saving is None else Checkpoint(saving, numbers.model_dump(mode="json")),
    )
    return module, outcome, seen


def same(one, other) -> bool:
    (first, told, _), (second, said, _) = one, other
    tensors = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in tensors) and [told.history, told.train_history] == [
        said.history,
        said.train_history,
    ]


@pytest.mark.parametrize("stop_after", [0, 1, 4, 10])
def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path, stop_after):
    whole = noisy()
    torch.manual_seed(99)  # whatever the caller's random numbers are
    with pytest.raises(Cancelled, match=f"step {stop_after + 1} of 11.*{tmp_path.name}.*continues from there"):
        noisy(tmp_path, stop_after=stop_after)
    resumed = noisy(tmp_path)
    assert resumed[2] == list(range(stop_after + 1, 12))
    assert resumed[1].resumed_at == stop_after
    assert whole[1].resumed_at is None
    assert same(resumed, whole)


def test_the_best_state_of_before_the_stop_is_kept(tmp_path):
    """Of validation text of other tokens every step makes a worse model, so the best is the first."""
    valid = np.full((2, 5), 3)
    with pytest.raises(Cancelled):
        noisy(tmp_path, stop_after=6, valid=valid)
    resumed = noisy(tmp_path, valid=valid)
    assert resumed[1].best_step == 0
    assert torch.equal(resumed[0].table, torch.zeros(6, 6))
    assert same(resumed, noisy(valid=valid))


def test_a_finished_training_is_not_done_twice(tmp_path):
    first = noisy(tmp_path, every=None)
    again = noisy(tmp_path)
    assert again[2] == []
    assert same(again, first)
    discard(tmp_path)
    assert not tmp_path.exists()


def test_it_saves_after_steps_and_after_seconds(tmp_path):
    def written(saving: Saving) -> list[int]:
        found, now, moment = [], Checkpoint(saving, {}), torch.zeros(1)
        with now.locked():
            for step in range(1, 7):
                if now.due(step):
                    now.write(step, {"x": moment}, {})
                    found.append(step)
        return found

    assert written(Saving(tmp_path, every_steps=2, every_seconds=None)) == [2, 4, 6]
    assert written(Saving(tmp_path, every_steps=None, every_seconds=0.0)) == [1, 2, 3, 4, 5, 6]
    assert written(Saving(tmp_path, every_steps=None, every_seconds=None)) == []


def adapter(base, saving=None, **watched):
    config = paper_config("houlsby", bottleneck=8)
    return train_on(base, config, TEXTS, VALID, hyperparameters=RECIPE, saving=saving, **watched)


class Killed(BaseException):
    """As by a signal that nobody handles."""


def test_a_killed_training_goes_on_to_the_same_bits(base, tmp_path):
    def die(step, *_):
        if step == 8:
            raise Killed

    with pytest.raises(Killed):
        adapter(base, Saving(tmp_path / "state", every_steps=3, every_seconds=None), progress=die)
    (tmp_path / "state" / f"{FILE}.new").write_bytes(b"half of one that was being written")
    resumed, whole = adapter(base, Saving(tmp_path / "state")), adapter(base)
    assert resumed.resumed_at == 6
    assert save_tensors(resumed.tensors) == save_tensors(whole.tensors)
    assert resumed.record == whole.record
    assert resumed.provenance == whole.provenance


def test_the_checkpoint_of_another_base_is_refused(base, bases, tmp_path):
    with pytest.raises(Cancelled):
        adapter(base, Saving(tmp_path / "state"), should_stop=lambda: True)
    with pytest.raises(Conflict, match=r"base\.fingerprint"):
        adapter(bases("llama"), Saving(tmp_path / "state"))


def test_what_is_no_checkpoint_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(Cancelled):
        noisy(tmp_path, stop_after=3)
    path = tmp_path / FILE
    whole = path.read_bytes()
    with safetensors.safe_open(path, framework="pt") as file:
        about = file.metadata()
    tensors = safetensors.torch.load(whole)
    other = {**tensors, "now.table": torch.zeros(1)}
    for data in (
        b"",
        whole[:-1],
        b"\x80\x02" + whole,
        safetensors.torch.save(tensors),
        safetensors.torch.save(tensors, {**about, "format": "2"}),
        safetensors.torch.save(tensors, {**about, "state": "{"}),
        safetensors.torch.save(tensors, {**about, "state": "[]"}),
        safetensors.torch.save(tensors, {**about, "state": "{}"}),
        safetensors.torch.save(other, about),
        safetensors.torch.save({"order": tensors["order"]}, about),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidParameter, match="delete it to start again") as caught:
            noisy(tmp_path)
        assert caught.value.param == "checkpoint"


def test_one_folder_is_of_one_training_at_a_time(tmp_path):
    with Checkpoint(Saving(tmp_path), {}).locked(), pytest.raises(Conflict, match="Another training is saving in"):
        noisy(tmp_path)
    noisy(tmp_path)


@pytest.mark.parametrize("made_again", [False, True])
def test_the_lock_of_a_folder_that_was_removed_meanwhile_owns_nothing(tmp_path, monkeypatch, made_again):
    """Another process ended between the opening of its folder here and the lock; maybe a third began since."""
    folder, lock, removed = tmp_path / "state", fcntl.flock, []

    def late(handle, how):
        if not removed:
            removed.append(folder.rmdir())
            if made_again:
                folder.mkdir()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(folder, "taken"):
        with pytest.raises(Conflict, match="taken"), locked(folder, "taken"):
            pass
        assert folder.is_dir()
    assert folder.exists() == made_again


def test_what_another_process_owns_by_now_is_not_discarded(tmp_path):
    noisy(tmp_path / "state", every=None)
    with locked(tmp_path / "state", "taken"):
        discard(tmp_path / "state")
        assert (tmp_path / "state" / FILE).is_file()
        with pytest.raises(Conflict, match="taken"), locked(tmp_path / "state", "taken"):
            pass
    discard(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_folder_that_cannot_be_used_is_said(tmp_path):
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "file").write_text("x")
    (tmp_path / "state" / f"{FILE}.new").mkdir(parents=True)
    for name in ("nowhere", "file", "state"):
        with pytest.raises(Unavailable, match=f"Nothing can be saved in .*{name}"):
            noisy(tmp_path / name)


def test_divergence_after_going_on_is_the_same_divergence(tmp_path):
    def sentence(folder: Path | None) -> str:
        with pytest.raises(InvalidParameter, match="diverged") as caught:
            noisy(folder, learning_rate=200.0, warmup=1.0)
        return caught.value.message

    with pytest.raises(Cancelled):
        noisy(tmp_path, learning_rate=200.0, warmup=1.0, stop_after=1)
    assert sentence(tmp_path) == sentence(None)
