"""The loop of a training and its checkpoints: what it finds, when it ends, and that it goes on to the same bits."""

from __future__ import annotations

import errno
import fcntl
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from registry.adapters import paper_config
from registry.adapters.weights import save_tensors
from registry.errors import Cancelled, Conflict, InvalidParameter, Unavailable
from registry.progress import silent
from tests.training.conftest import TEXTS, VALID, Killed, train_on
from training.checkpoint import FILE, Checkpoint, Saving, discard, locked
from training.data import DataOrder
from training.hyperparameters import Hyperparameters
from training.loop import optimise
from training.losses_file import LossesFile, read_losses, thinned
from training.request import TrainingRun
from training.spec import TrainingSpec
from training.state import Curve, Objective, TrainingState
from training.worker import WorkerRequest, answer

pytestmark = pytest.mark.slow


class Counter(nn.Module):
    """A unigram model: its best NLL is the entropy of the tokens."""

    def __init__(self, logits: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def mean_nll(self, blocks):
        return -torch.log_softmax(self.logits, -1)[blocks].mean()


BLOCKS = np.array([[0, 0, 0, 1]] * 6, dtype=np.int64)
ENTROPY = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))


def started(module, loss, *, train=BLOCKS, valid=BLOCKS, valid_loss=None, **numbers):
    objective, numbers = Objective(loss, valid_loss), Hyperparameters(**numbers)
    return TrainingState(module, objective, train=train, valid=valid, hyperparameters=numbers)


def test_it_finds_the_entropy_and_says_where_it_began():
    module = Counter()
    state = started(module, module.mean_nll, steps=300, batch=4, block=4, learning_rate=0.1)
    optimise(state)
    assert state.history[0] == (0, pytest.approx(math.log(4)))
    assert state.best[0] == pytest.approx(ENTROPY, abs=0.01)
    assert module.mean_nll(torch.from_numpy(BLOCKS)).item() == pytest.approx(state.best[0])


def test_an_early_best_survives_later_harm():
    module, steps = Counter(), itertools.count(1)

    def loss(blocks):
        return module.mean_nll(blocks if next(steps) <= 50 else torch.full_like(blocks, 3))

    state = started(
        module, loss, valid_loss=module.mean_nll, steps=100, batch=6, block=4, evaluations=10, learning_rate=0.03
    )
    optimise(state)
    assert 0 < state.best[1] <= 60
    assert module.mean_nll(torch.from_numpy(BLOCKS)).item() == pytest.approx(state.best[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_the_losses_of_one_that_diverges_end_with_the_loss_that_did(bad, tmp_path):
    """Points are means of three steps here: the step begun before the fifth is one, and what is no number is none."""
    module, file, losses = Counter(), tmp_path / "losses.json", []

    def loss(blocks):
        losses.append(float(module.mean_nll(blocks).detach()))
        return module.mean_nll(blocks) * 0 + bad if len(losses) == 5 else module.mean_nll(blocks)

    state = started(module, loss, valid_loss=module.mean_nll, steps=300, batch=6, block=4, learning_rate=0.1)
    with pytest.raises(InvalidParameter, match=r"diverged at step 5 of 300.*learning rate") as caught:
        optimise(state, losses=LossesFile(file))
    assert caught.value.param == "learning_rate"
    saved = read_losses(file)
    mean = pytest.approx(sum(losses[:3]) / 3, rel=1e-6)
    last = [[5, 1e6]] if bad == 1e6 else []
    assert saved["train_history"] == [[3, mean], [4, pytest.approx(losses[3], rel=1e-6)], *last]
    assert saved["valid_history"] == [[0, pytest.approx(math.log(4))]]


def test_a_validation_loss_that_diverges_is_the_last_of_its_losses(tmp_path):
    module, file = Counter(), tmp_path / "losses.json"
    valid = iter([1.0, 9.0])
    state = started(
        module,
        module.mean_nll,
        valid_loss=lambda _: torch.tensor(next(valid)),
        steps=300,
        batch=6,
        block=4,
        evaluations=60,
    )
    with pytest.raises(InvalidParameter, match="validation loss is 9"):
        optimise(state, losses=LossesFile(file))
    saved = read_losses(file)
    assert saved["valid_history"] == [[0, 1.0], [5, 9.0]]
    assert [step for step, _ in saved["train_history"]] == [3, 5]


@pytest.mark.parametrize(
    ("losses", "message", "param"),
    [
        ([math.nan], "nan before the first step: the adapter's start", None),
        ([1.0, math.nan], "diverged", "learning_rate"),
    ],
)
def test_a_validation_loss_that_is_no_number_is_refused_too(losses, message, param):
    module, valid = Counter(), iter(losses)
    state = started(module, module.mean_nll, valid_loss=lambda _: torch.tensor(next(valid)), steps=4, batch=6, block=4)
    with pytest.raises(InvalidParameter, match=message) as caught:
        optimise(state)
    assert caught.value.param == param


def test_an_easy_first_batch_makes_no_ordinary_one_a_divergence():
    module, losses = Counter(), itertools.chain([0.5], itertools.repeat(6.0))
    state = started(
        module,
        lambda blocks: module.mean_nll(blocks) * 0 + next(losses) + module.logits[0],
        valid_loss=module.mean_nll,
        steps=8,
        batch=1,
        block=4,
    )
    optimise(state)
    assert state.curve.points[-1][1] > 5


def test_validation_text_that_is_harder_from_the_first_has_not_diverged():
    """Held to its own loss before the first step, not to that of the training text."""
    module = Counter()
    for extra in (5.0, 50.0):
        state = started(
            module,
            module.mean_nll,
            valid_loss=lambda blocks, extra=extra: module.mean_nll(blocks) + extra,
            steps=8,
            batch=4,
            block=4,
        )
        optimise(state)
        assert state.best[0] < state.history[0][1]
    losses = iter([50.0, 50.0, 52.1, 52.1])  # two parts each
    with pytest.raises(InvalidParameter, match=r"the validation loss is 52\.1 nats a token.* began at 50\."):
        optimise(
            started(
                module,
                module.mean_nll,
                valid_loss=lambda _blocks: torch.tensor(next(losses)),
                steps=1,
                batch=4,
                block=4,
            )
        )


@given(st.integers(1, 500), st.floats(0, 1), st.sampled_from(["linear", "cosine"]))
def test_the_rate_rises_then_falls_and_never_leaves_its_bounds(steps, warmup, schedule):
    recipe = Hyperparameters(steps=steps, warmup=warmup, learning_rate=0.5, schedule=schedule)
    rates = [recipe.learning_rate_at(step) for step in range(1, steps + 1)]
    assert all(0 < rate <= 0.5 for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 0.5


@given(st.integers(1, 300), st.integers(1, 20))
def test_the_last_step_is_always_evaluated(steps, evaluations):
    at = Hyperparameters(steps=steps, evaluations=evaluations).evaluated_at()
    assert steps in at
    assert min(at) >= 1
    assert len(at) <= evaluations


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 30))
def test_every_block_comes_once_an_epoch(blocks, batch, steps):
    order = DataOrder(blocks, take=batch, seed=0)
    stream = [int(index) for _ in range(steps) for index in order.next()]
    for epoch in range(len(stream) // blocks):
        assert sorted(stream[epoch * blocks : (epoch + 1) * blocks]) == list(range(blocks))


# --- accumulation, schedules, precision, what is frozen -----------------------------------------------

VARIED = np.random.default_rng(0).integers(0, 4, (24, 4))


def trained(*, module=None, train=VARIED, checkpoint=None, should_stop=None, **recipe):
    module = module or Counter()
    values = {"steps": 9, "batch": 8, "block": 4, "learning_rate": 0.1, "evaluations": 3, **recipe}
    state = started(module, module.mean_nll, train=train, valid=VARIED[:4], **values)
    optimise(state, checkpoint=checkpoint, should_stop=should_stop)
    return module, state


UNEVEN = (0.3, -0.2, 0.1, 0.5)
"""Logits where no gradient is zero: Adam makes a whole step of what rounding leaves of one."""


@pytest.mark.parametrize(("batch", "accumulate"), [(4, 2), (1, 8), (3, 3)])
def test_accumulated_batches_are_one_large_batch(batch, accumulate):
    large, large_state = trained(module=Counter(UNEVEN), batch=batch * accumulate)
    small, small_state = trained(module=Counter(UNEVEN), batch=batch, accumulate=accumulate)
    torch.testing.assert_close(small.logits, large.logits, rtol=1e-5, atol=1e-5)
    assert small_state.order.size == large_state.order.size == batch * accumulate
    assert [step for step, _ in small_state.history] == [step for step, _ in large_state.history]


def test_parts_of_another_size_count_as_their_share():
    """Five blocks in parts of 4 and 1: a mean of means would be another update."""
    large, _ = trained(module=Counter(UNEVEN), train=VARIED[:5], batch=5)
    small, _ = trained(module=Counter(UNEVEN), train=VARIED[:5], batch=4, accumulate=2)
    torch.testing.assert_close(small.logits, large.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [{"beta1": 0.0}, {"beta2": 0.9}, {"schedule": "cosine"}, {"weight_decay": 0.5}])
def test_every_number_of_the_optimiser_matters(change):
    assert not torch.equal(trained()[0].logits, trained(**change)[0].logits)


def test_cosine_is_half_way_down_in_the_middle_and_linear_too():
    for schedule, quarter in (("linear", 0.75), ("cosine", 0.5 * (1 + math.cos(math.pi / 4)))):
        recipe = Hyperparameters(steps=400, warmup=0, learning_rate=1.0, schedule=schedule)
        assert recipe.learning_rate_at(201) == pytest.approx(0.5)
        assert recipe.learning_rate_at(101) == pytest.approx(quarter)
        assert 0 < recipe.learning_rate_at(400) < 0.01


class Partly(Counter):
    """Of three parameters one is frozen, and one has no influence."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]), requires_grad=False)
        self.idle = nn.Parameter(torch.ones(2))

    def mean_nll(self, blocks):
        return -torch.log_softmax(self.logits + self.frozen, -1)[blocks].mean()


def test_frozen_parameters_stay_as_they_were_and_are_not_counted():
    module, state = trained(module=Partly(), weight_decay=0.1)
    assert torch.equal(module.frozen, torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert torch.equal(module.idle, torch.ones(2))
    assert module.frozen.grad is None
    assert not torch.equal(module.logits, torch.zeros(4))
    assert list(state.trained) == ["logits", "idle"]


def test_what_trains_nothing_is_refused():
    frozen, unused, plain = Partly().requires_grad_(False), Partly(), Counter()
    unused.logits.requires_grad_(False)
    for module, loss in (
        (frozen, frozen.mean_nll),
        (unused, unused.mean_nll),
        (plain, lambda blocks: plain.mean_nll(blocks) * 0.0),
    ):
        with pytest.raises(InvalidParameter, match="Nothing would be trained"):
            optimise(started(module, loss, steps=2, batch=4, block=4))


@given(st.integers(1, 1000))
def test_the_curve_of_the_training_loss_is_short_and_complete(steps):
    curve = Curve(steps)
    for step in range(1, steps + 1):
        curve.add(step, float(step))
    assert len(curve.points) <= 100
    assert curve.points[-1][0] == steps
    ends = [0, *(step for step, _ in curve.points)]
    means = [(end + previous + 1) / 2 for previous, end in itertools.pairwise(ends)]
    assert [loss for _, loss in curve.points] == pytest.approx(means)


def test_the_training_leaves_the_random_numbers_of_its_caller_alone():
    torch.manual_seed(3)
    first = torch.rand(1)
    torch.manual_seed(3)
    trained()
    assert torch.equal(torch.rand(1), first)


# --- the file of losses -------------------------------------------------------------------------------


@given(st.integers(0, 12_000), st.integers(0, 12_000))
def test_many_points_become_few_with_the_first_the_last_and_the_best(count: int, best_step: int) -> None:
    points = [(step, float(step)) for step in range(count)]
    remaining = thinned(points, at_most=400, best_step=best_step)
    assert len(remaining) <= 402
    assert remaining == sorted(set(remaining) & set(points))
    assert (remaining[:1], remaining[-1:]) == (points[:1], points[-1:])
    assert (best_step in dict(remaining)) == (best_step < count)
    if count <= 400:
        assert remaining == points


def test_a_disk_that_takes_none_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "gone" / "losses.json"  # its folder is not there: as a full disk, an OSError
    module = Counter()
    state = started(module, module.mean_nll, steps=3, batch=1, block=4)
    optimise(state, losses=LossesFile(place))
    assert state.curve.points[-1][0] == 3
    assert "the losses of a training are not written: No such file or directory" in caplog.text
    assert read_losses(place) is None


# --- checkpoints ----------------------------------------------------------------------------------


NOISE_BLOCKS = np.random.default_rng(1).integers(0, 6, (20, 5))
RECIPE = Hyperparameters(steps=12, batch=4, block=32, learning_rate=1e-2, evaluations=3)


class Noisy(nn.Module):
    """A bigram model with dropout and a buffer that changes: what it becomes hangs on every random number."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, 6))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("blocks_seen", torch.zeros((), dtype=torch.int64))

    def mean_nll(self, blocks):
        if torch.is_grad_enabled():
            self.blocks_seen += len(blocks)
        rows = nn.functional.dropout(self.table, 0.3, training=torch.is_grad_enabled())[blocks[:, :-1]]
        return nn.functional.cross_entropy((rows * self.scale).flatten(0, 1), blocks[:, 1:].flatten())


def noisy(
    folder: Path | None = None,
    *,
    stop_after: int | None = None,
    every_steps: int | None = 2,
    valid=NOISE_BLOCKS[:4],
    **changes,
):
    module, steps = Noisy(), []
    values = {"steps": 11, "batch": 3, "accumulate": 2, "block": 5, "learning_rate": 0.05, "evaluations": 4, **changes}
    numbers = Hyperparameters(**values)
    saving = None if folder is None else Saving(folder, every_steps=every_steps, every_seconds=None)
    state = TrainingState(module, Objective(module.mean_nll), train=NOISE_BLOCKS, valid=valid, hyperparameters=numbers)
    optimise(
        state,
        progress=lambda step, *_: steps.append(step),
        should_stop=None if stop_after is None else lambda: len(steps) == stop_after,
        checkpoint=None if saving is None else Checkpoint(saving, numbers.model_dump(mode="json")),
    )
    return module, state, steps


def same(first, second) -> bool:
    (first_module, first_state, _), (second_module, second_state, _) = first, second
    tensors = zip(first_module.state_dict().values(), second_module.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in tensors) and [first_state.history, first_state.curve.points] == [
        second_state.history,
        second_state.curve.points,
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
    assert resumed[1].best[1] == 0
    assert torch.equal(resumed[0].table, torch.zeros(6, 6))
    assert same(resumed, noisy(valid=valid))


def test_a_finished_training_is_not_done_twice(tmp_path):
    first = noisy(tmp_path, every_steps=None)
    repeated = noisy(tmp_path)
    assert repeated[2] == []
    assert same(repeated, first)
    discard(tmp_path)
    assert not tmp_path.exists()


def test_it_saves_after_steps_and_after_seconds(tmp_path):
    def written(saving: Saving) -> list[int]:
        saved_steps, now, moment = [], Checkpoint(saving, {}), torch.zeros(1)
        with now.locked():
            for step in range(1, 7):
                if now.due(step):
                    now.write(step, {"x": moment}, {})
                    saved_steps.append(step)
        return saved_steps

    assert written(Saving(tmp_path, every_steps=2, every_seconds=None)) == [2, 4, 6]
    assert written(Saving(tmp_path, every_steps=None, every_seconds=0.0)) == [1, 2, 3, 4, 5, 6]
    assert written(Saving(tmp_path, every_steps=None, every_seconds=None)) == []


def adapter(base, saving=None, **watched):
    config = paper_config("houlsby", bottleneck=8)
    return train_on(base, config, TEXTS, VALID, hyperparameters=RECIPE, saving=saving, **watched)


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
    assert (resumed.record, resumed.provenance) == (whole.record, whole.provenance)


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
    mismatched = {**tensors, "now.table": torch.zeros(1)}
    for data in (
        b"",
        whole[:-1],
        b"\x80\x02" + whole,
        safetensors.torch.save(tensors),
        safetensors.torch.save(tensors, {**about, "format": "2"}),
        safetensors.torch.save(tensors, {**about, "state": "{"}),
        safetensors.torch.save(tensors, {**about, "state": "[]"}),
        safetensors.torch.save(tensors, {**about, "state": "{}"}),
        safetensors.torch.save(mismatched, about),
        safetensors.torch.save({"order": tensors["order"]}, about),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidParameter, match="delete it to start again") as caught:
            noisy(tmp_path)
        assert caught.value.param == "checkpoint"


def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_broken(tmp_path, monkeypatch):
    with pytest.raises(Cancelled):
        noisy(tmp_path, stop_after=5)
    monkeypatch.setattr("training.state._fill", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(torch.OutOfMemoryError):
        noisy(tmp_path)


def test_one_folder_is_of_one_training_at_a_time(tmp_path):
    with Checkpoint(Saving(tmp_path), {}).locked(), pytest.raises(Conflict, match="Another training is saving in"):
        noisy(tmp_path)
    noisy(tmp_path)


@pytest.mark.parametrize("made_again", [False, True])
def test_the_lock_of_a_folder_that_was_removed_meanwhile_owns_nothing(tmp_path, monkeypatch, made_again):
    """Another process ended between the opening of its folder here and the lock; maybe a third began since."""
    folder, lock, removed = tmp_path / "state", fcntl.flock, []

    def late(handle, operation):
        if not removed:
            removed.append(folder.rmdir())
            if made_again:
                folder.mkdir()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(Conflict, match="taken"), locked(folder, "taken"):
        pass
    assert folder.exists() == made_again
    with locked(folder, "taken"):
        assert folder.is_dir()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    """A folder that servers share may be mounted without locks: nobody else is training there."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOTSUP, "Operation not supported")))
    monkeypatch.setattr("training.worker.should_end", lambda: True)
    run = TrainingRun(spec=TrainingSpec(), train=tmp_path / "train.jsonl", out=tmp_path / "adapter", domain="law")
    with pytest.raises(Unavailable, match=r"turn cannot be locked: Operation not supported\."):
        answer(WorkerRequest(run=run, turn=tmp_path / "turn"), Mock(), silent)
    with pytest.raises(Unavailable, match=r"state cannot be locked: Operation not supported\."):
        noisy(tmp_path / "state")


def test_what_another_process_owns_by_now_is_not_discarded(tmp_path):
    noisy(tmp_path / "state", every_steps=None)
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
