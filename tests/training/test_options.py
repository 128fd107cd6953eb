"""What a training may have beside its numbers: a start of its own, pruning, a bank; alone, resumed, and refused."""

from __future__ import annotations

import math

import pytest
import torch

from registry.adapters import attached, create, from_tensors, paper_config
from registry.adapters.experts import merge_bank
from registry.adapters.masks import is_mask
from registry.adapters.weights import init_hash, save_tensors
from registry.errors import Cancelled, Conflict, Incompatible, InvalidParameter
from registry.spec import BankConfig, HeadConfig, PrefixConfig, UnionConfig
from tests.training.conftest import TEXTS, VALID, state_hash, train_on
from training.checkpoint import Saving
from training.data import Data
from training.hyperparameters import Hyperparameters, PruningOptions
from training.inputs import TrainingInputs
from training.methods.fusion import fusion_config, fusion_start
from training.methods.lora_targets import lora_for
from training.tasks import LANGUAGE_MODELLING, TASKS

RECIPE = Hyperparameters(steps=8, batch=4, block=32, learning_rate=1e-2, evaluations=2)
PLAIN = paper_config("pfeiffer", bottleneck=4)
BANK = BankConfig(expert=PLAIN, experts=3)
MAM = UnionConfig(members=(PrefixConfig(length=2), paper_config("parallel", bottleneck=4)))
PRUNING = PruningOptions(sparsity=0.5, batches=2)


def train(base, config=PLAIN, **changes):
    return train_on(base, config, TEXTS, VALID, **{"hyperparameters": RECIPE, **changes})


@pytest.fixture(scope="module")
def fused(base):
    members = [train(base, init_seed=seed) for seed in (1, 2)]
    config = fusion_config([member.config for member in members])
    return config, fusion_start(config, [member.tensors for member in members])


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask",
    [
        {}, {"config": PrefixConfig(length=3)}, {"config": MAM}, {"config": BANK, "consistency": "paper"},
        {"config": BANK, "consistency": "released"}, {"config": BANK, "consistency": "none"}, {"pruning": PRUNING},
        {"config": MAM, "pruning": PRUNING, "init": "linear"}, {"config": "fused"},
        {"config": "fused", "pruning": PRUNING}, {"config": "lora"},
        {"config": "lora", "init": "small_b", "pruning": PRUNING},
    ],
    ids=["plain", "prefix", "mam", "paper", "released", "none", "snip", "mam-snip", "fusion", "fusion-snip", "lora",
         "lora-snip"],
)  # fmt: skip
def test_everything_that_trains_helps_leaves_the_base_alone_and_is_resumed_to_the_same_bits(base, fused, tmp_path, ask):
    ask, asked = dict(ask), []
    if ask.get("config") == "fused":
        ask["config"], ask["start"] = fused
    if ask.get("config") == "lora":
        ask["config"] = lora_for(base.shape, rank=2, alpha=4)
    before = state_hash(base.model)
    whole = train(base, **ask)
    assert state_hash(base.model) == before
    assert whole.record["valid_perplexity"] < whole.record["valid_perplexity_before"]
    with pytest.raises(Cancelled):
        train(base, **ask, saving=Saving(tmp_path), should_stop=lambda: asked.append(1) or len(asked) > 3)
    resumed = train(base, **ask, saving=Saving(tmp_path))
    assert (resumed.resumed_at, resumed.resume_note) == (3, None)
    assert save_tensors(resumed.tensors) == save_tensors(whole.tensors)
    assert (resumed.record, resumed.config, resumed.init_hash) == (whole.record, whole.config, whole.init_hash)
    adapter = from_tensors(whole.config, base.shape, whole.tensors)  # as it would be read from a file
    assert math.exp(valid_loss(base, adapter)) == pytest.approx(whole.record["valid_perplexity"], rel=1e-5)


def valid_loss(base, adapter):
    rows = torch.from_numpy(LANGUAGE_MODELLING.encode(base, VALID, block=32).rows)
    with attached(base.model, adapter), torch.no_grad():
        return float(LANGUAGE_MODELLING.loss(base, adapter, rows))


# --- start --------------------------------------------------------------------------------------------


def test_a_start_replaces_initial_tensors_by_name_and_is_named_in_the_record(base):
    name = "layers.0.ffn.down.weight"
    value = torch.full((4, 32), 0.01)
    still = RECIPE.model_copy(update={"steps": 1, "learning_rate": 1e-30})
    plain, started = train(base, hyperparameters=still), train(base, hyperparameters=still, start={name: value})
    assert torch.equal(started.tensors[name], value)
    others = [other for other in plain.tensors if other != name]
    assert all(torch.equal(started.tensors[other], plain.tensors[other]) for other in others)
    fresh = create(PLAIN, base.shape, seed=0).state_dict()
    assert started.init_hash == init_hash({**fresh, name: value}) != plain.init_hash
    assert started.record["start"] == init_hash({name: value})
    assert "start" not in plain.record
    assert torch.equal(value, torch.full((4, 32), 0.01))


@pytest.mark.parametrize(
    ("name", "size", "said"), [("layers.9.ffn.down.weight", (4, 32), "not expected"),
                               ("layers.0.ffn.down.weight", (5, 32), "has shape")],
)  # fmt: skip
def test_a_start_of_other_tensors_is_refused(base, name, size, said):
    with pytest.raises(Incompatible, match=said):
        train(base, start={name: torch.zeros(size)})


def test_the_members_of_a_fusion_stay_as_they_came(base, fused):
    config, start = fused
    trained = train(base, config, start=start)
    assert all(torch.equal(trained.tensors[name], value) for name, value in start.items())
    assert trained.record["parameters"]["trained"] == sum(
        tensor.numel() for name, tensor in trained.tensors.items() if name not in start
    )


# --- banks and pruning --------------------------------------------------------------------------------


def test_a_bank_starts_where_the_plain_adapter_does_and_is_validated_as_its_merge(base):
    bank, plain = train(base, BANK), train(base)
    assert bank.init_hash == plain.init_hash
    assert bank.record["consistency"] == "released"
    merged = from_tensors(PLAIN, base.shape, merge_bank(BANK, bank.tensors))
    assert math.exp(valid_loss(base, merged)) == pytest.approx(bank.record["valid_perplexity"], rel=1e-5)


def test_what_is_pruned_is_not_counted_as_trained_and_starts_as_the_dense_adapter(base):
    dense, sparse = train(base), train(base, pruning=PRUNING)
    masked = sparse.config.pruned.masked
    assert dense.record["parameters"]["trained"] - masked == sparse.record["parameters"]["trained"]
    assert sparse.init_hash == dense.init_hash
    assert sparse.record["pruning"] == PRUNING.model_dump(mode="json")
    assert sparse.config.pruned.data == sparse.record["data"]["train"]
    zeros = sum(int((tensor == 0).sum()) for name, tensor in sparse.tensors.items() if name.endswith("n.weight"))
    assert masked >= zeros > 0
    assert any(is_mask(name) for name in sparse.tensors)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"consistency": "paper"}, InvalidParameter, "this adapter is a bottleneck"),
        ({"config": BANK, "pruning": PRUNING}, InvalidParameter, "not pruned: choose one"),
        ({"config": PrefixConfig(length=2), "pruning": PRUNING}, InvalidParameter, "no projections to prune"),
        ({"init": "zero_up", "pruning": PRUNING}, InvalidParameter, "zero"),
    ],
)
def test_options_that_do_not_go_together_are_refused(base, changes, error, said):
    with pytest.raises(error, match=said):
        train(base, **changes)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"pruning": PRUNING}, {}, r"pruning \("),
        ({"pruning": PRUNING}, {"pruning": PruningOptions(sparsity=0.25, batches=2)}, r"pruning\.sparsity \(0.5 there"),
        ({"config": BANK}, {"config": BANK, "consistency": "paper"}, r'consistency \("released" there, "paper" here'),
        ({"config": BANK}, {"config": BankConfig(expert=PLAIN, experts=2)}, r"config\.experts \(3 there"),
        ({}, {"start": {"layers.0.ffn.down.weight": torch.zeros(4, 32)}}, r"start \(null there"),
    ],
)
def test_the_checkpoint_of_other_options_is_refused(base, tmp_path, before, now, said):
    with pytest.raises(Cancelled):
        train(base, **before, saving=Saving(tmp_path), should_stop=lambda: True)
    with pytest.raises(Conflict, match=said):
        train(base, **now, saving=Saving(tmp_path))


# --- records ------------------------------------------------------------------------------------------


def test_what_is_not_asked_for_has_no_key_in_the_record(base):
    keys = set(TrainingInputs(PLAIN, Data(TEXTS, VALID), RECIPE).record(base))
    assert keys == {"task", "base", "init", "data", *RECIPE.model_dump()}
    summaries = TrainingInputs(PLAIN, Data([], []), RECIPE, TASKS["summarisation"]).record(base)
    assert summaries["prompt"] == "\n\nSummary:"


def test_going_on_with_other_threads_is_noted(base, tmp_path):
    asked = []
    with pytest.raises(Cancelled):
        train(base, saving=Saving(tmp_path), should_stop=lambda: asked.append(1) or len(asked) > 2)
    torch.set_num_threads(2)
    try:
        resumed = train(base, saving=Saving(tmp_path))
    finally:
        torch.set_num_threads(1)
    assert resumed.resume_note == "The last bits may differ from an unbroken training's: threads (1 there, 2 here)."
    assert [one["threads"] for one in resumed.record["made_with"]] == [1, 2]


def test_the_record_says_how_a_lora_starts_wherever_it_is(base):
    lora, head = lora_for(base.shape, rank=2, alpha=4), HeadConfig(task="classification", labels=("a", "b"))

    def said(config, init="near_identity"):
        return TrainingInputs(config, Data(TEXTS, VALID), RECIPE, init=init).record(base)["init"]

    assert said(lora) == said(BankConfig(expert=lora)) == said(UnionConfig(members=(lora, head))) == "zero_b"
    assert said(lora, "small_b") == said(BankConfig(expert=lora), "small_b") == "small_b"
    assert said(PLAIN) == said(BANK) == said(UnionConfig(members=(lora, PLAIN))) == "near_identity"
