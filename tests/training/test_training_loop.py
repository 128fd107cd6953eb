"""The optimisation loop on a module small enough to know what must come out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from registry.errors import Cancelled, InvalidParameter
from training.loop import Recipe, _batches, optimise


class Counter(nn.Module):
    """A unigram model: its best NLL is the entropy of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(4))

    def mean_nll(self, blocks):
        return -torch.log_softmax(self.logits, -1)[blocks].mean()


BLOCKS = np.array([[0, 0, 0, 1]] * 6, dtype=np.int64)
ENTROPY = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))


def run(module=None, *, valid=BLOCKS, **recipe):
    module = module or Counter()
    values = {"steps": 300, "batch": 4, "block": 4, "learning_rate": 0.1, **recipe}
    return module, optimise(module, module.mean_nll, train=BLOCKS, valid=valid, recipe=Recipe(**values))


def test_it_finds_the_entropy_and_says_where_it_began():
    module, outcome = run()
    assert outcome.valid_before == pytest.approx(math.log(4))
    assert outcome.valid_best == pytest.approx(ENTROPY, abs=0.01)
    assert module.mean_nll(torch.from_numpy(BLOCKS)).item() == pytest.approx(outcome.valid_best)
    assert outcome.history[0] == (0, outcome.valid_before)


def test_the_best_state_on_validation_is_kept_not_the_last():
    """Validation text of other tokens: every step makes it worse, so step 0 is the best and is restored."""
    module, outcome = run(valid=np.full((2, 4), 3, dtype=np.int64), steps=20, learning_rate=0.02)
    assert outcome.best_step == 0
    assert torch.equal(module.logits, torch.zeros(4))
    assert outcome.history[-1][1] > outcome.valid_before


def test_an_early_best_survives_later_harm():
    class Drifting(Counter):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def mean_nll(self, blocks):
            if not torch.is_grad_enabled():
                return super().mean_nll(blocks)
            self.calls += 1
            return super().mean_nll(blocks if self.calls <= 50 else torch.full_like(blocks, 3))

    module, outcome = run(Drifting(), steps=100, evaluations=10, learning_rate=0.03)
    assert 0 < outcome.best_step <= 60
    assert Counter.mean_nll(module, torch.from_numpy(BLOCKS)).item() == pytest.approx(outcome.valid_best)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    torch.manual_seed(1)
    first, second, other = (run(steps=7, batch=2, data_seed=s, valid=np.array([[0, 1, 2, 3]]))[1] for s in (5, 5, 6))
    assert first == second
    varied = np.arange(24).reshape(6, 4)
    orders = [np.concatenate(list(_batches(varied, Recipe(steps=3, batch=2, data_seed=s)))).tolist() for s in (5, 6)]
    assert orders[0] != orders[1]
    assert other.train_tokens == first.train_tokens


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_a_loss_that_diverges_is_refused_with_step_and_rate(bad):
    class Diverging(Counter):
        calls = 0

        def mean_nll(self, blocks):
            loss = super().mean_nll(blocks)
            if torch.is_grad_enabled():
                self.calls += 1
                if self.calls == 3:
                    return loss * 0 + bad if math.isfinite(bad) else loss * bad
            return loss

    with pytest.raises(InvalidParameter, match=r"diverged at step 3 of 300.*learning rate") as caught:
        run(Diverging())
    assert caught.value.param == "learning_rate"


def test_a_validation_loss_that_is_no_number_is_refused_too():
    class Broken(Counter):
        def mean_nll(self, blocks):
            loss = super().mean_nll(blocks)
            return loss if torch.is_grad_enabled() or self.logits.abs().sum() == 0 else loss * math.nan

    with pytest.raises(InvalidParameter, match="diverged"):
        run(Broken(), steps=4, evaluations=1)


def test_cancelling_stops_before_the_next_step():
    module, seen = Counter(), []
    with pytest.raises(Cancelled, match="step 4 of 300"):
        optimise(
            module, module.mean_nll, train=BLOCKS, valid=BLOCKS, recipe=Recipe(steps=300, batch=2, block=4),
            progress=lambda step, steps, message: seen.append((step, steps)), should_stop=lambda: len(seen) == 3,
        )  # fmt: skip
    assert seen == [(1, 300), (2, 300), (3, 300)]


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_rate_rises_then_falls_and_never_leaves_its_bounds(steps, warmup):
    recipe = Recipe(steps=steps, warmup=warmup, learning_rate=0.5)
    rates = [recipe.learning_rate_at(step) for step in range(1, steps + 1)]
    assert all(0 < rate <= 0.5 for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 0.5


@given(st.integers(1, 300), st.integers(1, 20))
def test_the_last_step_is_always_evaluated(steps, evaluations):
    at = Recipe(steps=steps, evaluations=evaluations).evaluated_at()
    assert steps in at
    assert min(at) >= 1
    assert len(at) <= evaluations


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 30))
def test_every_block_comes_once_an_epoch(blocks, batch, steps):
    data = np.arange(blocks)[:, None]
    stream = np.concatenate(list(_batches(data, Recipe(steps=steps, batch=batch)))).ravel().tolist()
    for epoch in range(len(stream) // blocks):
        assert sorted(stream[epoch * blocks : (epoch + 1) * blocks]) == list(range(blocks))
