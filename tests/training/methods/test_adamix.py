"""AdaMix: the loss against its formula, which experts a step trains, and a bank's training from start to merge."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import registry.base_model.likelihood as likelihood
from registry.adapters import create, from_tensors, paper_config
from registry.adapters.experts import BankAdapter, merge_bank
from registry.adapters.weights import init_hash, load_tensors, save_tensors
from registry.base_model.likelihood import lm_logits
from registry.errors import InvalidParameter
from registry.formats import read_directory
from registry.spec import BankConfig, UnionConfig
from tests.training.conftest import TEXTS, VALID, train_on
from tests.training.task_items import LABELLED
from training.hyperparameters import Hyperparameters
from training.methods.adamix import consistent_loss
from training.methods.lora_targets import lora_for
from training.tasks import TASKS
from training.tasks.contract import Scored, with_head
from training.trainer import Trained

pytestmark = pytest.mark.slow

RECIPE = Hyperparameters(steps=8, batch=4, block=32, learning_rate=1e-2, evaluations=2)
MODES = ("released", "paper", "none")


def expert_of(kind, base):
    return lora_for(base.shape, rank=4, alpha=8.0) if kind == "lora" else paper_config(kind, bottleneck=8)


def train(base, kind="pfeiffer", *, experts=4, share="up", **changes) -> Trained:
    config = BankConfig(expert=expert_of(kind, base), experts=experts, share=share)
    return train_on(base, config, TEXTS, VALID, **{"hyperparameters": RECIPE, **changes})


# --- the loss ---------------------------------------------------------------------------------------


class Played:
    """A bank whose two passes give logits that are set beforehand; it remembers the routes of the passes."""

    def __init__(self, base, *passes: Tensor, targets: Tensor, weights: Tensor) -> None:
        config = BankConfig(expert=paper_config("pfeiffer", bottleneck=2), experts=3, share="none")
        bank = create(config, base.shape, seed=0)
        assert isinstance(bank, BankAdapter)
        self.bank, self.routes, self.writer = bank, [], None
        self._passes, self._targets, self._weights = iter(passes), targets, weights

    def scored(self, rows: Tensor) -> Scored:
        self.routes.append([self.bank.get_submodule(path).chosen for path in self.bank.projections])
        return Scored(next(self._passes), self._targets, self._weights, self.writer)

    def loss(self, mode) -> Tensor:
        return consistent_loss(self.scored, self.bank, mode)(torch.zeros(1, 1, dtype=torch.int64))


def batch_of(seed: int, rows: int, classes: int, spread: float = 2.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two passes' logits, targets and weights, in double precision."""
    draw = np.random.default_rng(seed)
    first, second = (torch.from_numpy(draw.normal(0, spread, (rows, classes))).requires_grad_() for _ in range(2))
    weights = torch.from_numpy(draw.random(rows))
    return first, second, torch.from_numpy(draw.integers(0, classes, rows)), weights / weights.sum()


def written_out(first, second, targets, weights, mode) -> Tensor:
    """CE(z_A) + 1/2 [KL(z_A || z_B) + KL(z_B || z_A)] (AdaMix, section 3.2) by torch's own functions."""
    log_a, log_b = first.log_softmax(-1), second.log_softmax(-1)

    def target(log):
        return log.detach() if mode == "released" else log

    a_b = F.kl_div(log_b, target(log_a), log_target=True, reduction="none").sum(-1)
    b_a = F.kl_div(log_a, target(log_b), log_target=True, reduction="none").sum(-1)
    cross_entropy = F.nll_loss(log_a, targets, reduction="none")
    return ((cross_entropy + 0.5 * (a_b + b_a)) * weights).sum()


@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 9), classes=st.integers(2, 7), mode=st.sampled_from(MODES[:2])
)
def test_value_and_gradients_are_the_formula(base, seed, rows, classes, mode):
    first, second, targets, weights = batch_of(seed, rows, classes)
    loss = Played(base, first, second, targets=targets, weights=weights).loss(mode)
    expected = written_out(first, second, targets, weights, mode)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(3.0 * loss, (first, second)), torch.autograd.grad(3.0 * expected, (first, second))
    )


@pytest.mark.parametrize(("rows", "mode"), [(1, "paper"), (2, "released"), (10**9, "paper")])
def test_states_that_the_base_makes_logits_of_have_the_same_loss_and_gradients(base, monkeypatch, rows, mode):
    """Parts of the vocabulary's logits, as at 50,000 tokens, change nothing."""
    monkeypatch.setattr(likelihood, "_LOGIT_ROWS", rows)
    draw = torch.Generator().manual_seed(1)
    first, second = (torch.randn(5, base.shape.hidden_size, generator=draw).requires_grad_() for _ in range(2))
    targets, weights = torch.tensor([4, 0, 299, 7, 7]), torch.tensor([0.1, 0.4, 0.2, 0.0, 0.3])
    played = Played(base, first, second, targets=targets, weights=weights)
    played.writer = base.model
    loss = played.loss(mode)
    expected = written_out(lm_logits(base.model, first), lm_logits(base.model, second), targets, weights, mode)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(3.0 * loss, (first, second)), torch.autograd.grad(3.0 * expected, (first, second))
    )


def test_autocast_leaves_the_loss_in_full_precision(base):
    first, second, targets, weights = (tensor.detach() for tensor in batch_of(3, 40, 11))
    logits = [tensor.float().requires_grad_() for tensor in (first, second)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = Played(base, *logits, targets=targets, weights=weights.float()).loss("paper")
    assert loss.dtype == torch.float32
    expected = written_out(*logits, targets, weights.float(), "paper")
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", MODES[:2])
def test_certainty_gives_numbers(base, mode):
    first = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    second = torch.tensor([[0.0, 90.0, 0.0]], requires_grad=True)
    loss = Played(base, first, second, targets=torch.tensor([0]), weights=torch.ones(1)).loss(mode)
    gradients = torch.autograd.grad(loss, (first, second))
    assert math.isfinite(loss.item())
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_without_consistency_there_is_one_pass(base):
    first, _, targets, weights = batch_of(0, 5, 4)
    played = Played(base, first, targets=targets, weights=weights)
    torch.testing.assert_close(played.loss("none"), Scored(first, targets, weights).loss())
    assert len(played.routes) == 1
    assert None not in played.routes[0]


def test_the_papers_second_route_has_other_experts_and_the_released_one_may_have_the_same(base):
    _, _, targets, weights = batch_of(0, 1, 2)
    alike = {"paper": 0, "released": 0}
    torch.manual_seed(0)
    for mode in [*alike] * 20:
        first, second, *_ = batch_of(0, 1, 2)
        played = Played(base, first, second, targets=targets, weights=weights)
        played.loss(mode)
        first_route, second_route = played.routes
        alike[mode] += sum(a == b for a, b in zip(first_route, second_route, strict=True))
        assert None not in {*first_route, *second_route}
        assert not any(played.bank.get_submodule(path).chosen is not None for path in played.bank.projections)
    total = 20 * base.shape.num_layers * 2
    assert alike["paper"] == 0
    assert abs(alike["released"] - total / 3) < 5 * math.sqrt(total * 2 / 9)


# --- the training -----------------------------------------------------------------------------------


def test_the_modes_are_different_trainings_and_the_same_seeds_the_same(base):
    weights = {mode: save_tensors(train(base, "lora", consistency=mode).tensors) for mode in MODES}
    assert len(set(weights.values())) == 3
    assert save_tensors(train(base, "lora").tensors) == weights["released"]  # the default


def test_the_adapter_of_a_bank_has_its_start_and_says_of_what_it_was_made(base, tmp_path):
    trained = train(base, "houlsby", share="down", experts=3)
    merged = trained.merged()
    assert merged.config == paper_config("houlsby", bottleneck=8)
    assert merged.tensors.keys() == merge_bank(trained.config, trained.tensors).keys()
    plain = create(merged.config, base.shape, seed=0, base=base.model)
    assert merged.provenance.init_hash == trained.init_hash == init_hash(plain.state_dict())
    assert merged.record == {**trained.record, "bank": {"experts": 3, "share": "down"}}
    merged.write(tmp_path / "one", base, domain="law")
    from_tensors(merged.config, base.shape, load_tensors(read_directory(tmp_path / "one").weights.read_bytes()))
    with pytest.raises(InvalidParameter, match="this adapter is a bottleneck"):
        merged.merged()


@pytest.mark.parametrize(("kind", "mode"), [("bert", "released"), ("gpt2", "paper")])
def test_a_bank_learns_to_classify_with_one_head_for_all_its_experts(base, encoder, kind, mode):
    """The tasks of the paper: labels by a head that is trained with the bank and kept by its merge."""
    task, on = TASKS["classification"], encoder if kind == "bert" else base
    config = with_head(BankConfig(expert=paper_config("houlsby", bottleneck=8), experts=3), task.head(LABELLED))
    assert config.head == task.head(LABELLED)
    numbers = Hyperparameters(steps=40, batch=8, block=60, learning_rate=2e-2, evaluations=2)
    trained = train_on(on, config, LABELLED[:40], LABELLED[40:], hyperparameters=numbers, task=task, consistency=mode)
    merged = trained.merged()
    assert isinstance(merged.config, UnionConfig)
    figures = task.metrics(on, from_tensors(merged.config, on.shape, merged.tensors), LABELLED[40:], block=60)
    assert figures["loss"] == pytest.approx(trained.record["valid_loss"], rel=1e-4)
    assert figures["accuracy"] == 1.0 or kind == "bert"  # a random encoder's first token says little of a text
    assert trained.record["valid_loss"] < trained.record["valid_loss_before"]
