"""A training's spec: what is left open, what cannot go together, and the same said by flags."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.verbs.train.training_flags import TRAINING, spec_of
from registry.errors import Incompatible, InvalidParameter
from registry.spec import (
    BankConfig,
    BottleneckConfig,
    FusionConfig,
    Pruned,
)
from training.build import config_of, inputs_of
from training.data import HELD_OUT_SEED, held_out
from training.hyperparameters import Hyperparameters
from training.spec import AdapterRequest, RecipeRequest, TrainingSpec
from training.tasks.classification import Labelled


def spec(**fields: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(fields)


def test_every_field_of_a_spec_has_a_flag():
    assert set(RecipeRequest.model_fields) == set(Hyperparameters.model_fields)
    assert {f"recipe.{name}" for name in RecipeRequest.model_fields} <= set(TRAINING.by_path)
    adapter = {name for request in get_args(get_args(AdapterRequest)[0]) for name in request.model_fields}
    assert {f"adapter.{name}" for name in adapter} <= set(TRAINING.by_path)
    for part in ("adamix", "pruning"):
        (model, _) = get_args(TrainingSpec.model_fields[part].annotation)
        assert {f"{part}.{name}" for name in model.model_fields} <= set(TRAINING.by_path)


def test_what_is_left_open_is_the_papers(base):
    parallel = config_of(spec(adapter={"structure": "parallel"}), base.shape)
    assert (parallel.scale, parallel.activation) == (4.0, "relu")
    assert spec(adapter={"structure": "parallel"}).start == spec(adapter={"method": "mam"}).start == "zero_up"
    assert spec().start == "near_identity"
    assert config_of(spec(adapter={"method": "lora", "rank": 4}), base.shape).groups[0].alpha == 8.0
    assert spec().recipe.on(64).block == 64
    assert spec().recipe.on(4096).block == 512
    assert spec(pruning={}).pruning.options().sparsity == 0.4
    assert spec(pruning={"widen": 4}).pruning.options().sparsity == 0.75
    assert spec(pruning={"widen": 4, "sparsity": 0.1}).pruning.options().sparsity == 0.1
    bank = config_of(spec(adapter={"bottleneck": 4}, adamix={}), base.shape)
    assert isinstance(bank, BankConfig)
    assert (bank.experts, bank.share, bank.expert.bottleneck) == (4, "up", 4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"adamix": {}, "pruning": {}}, "exclude each other"),
        ({"adamix": {}, "adapter": {"method": "prefix"}}, "experts of a bottleneck or a LoRA"),
        ({"adapter": {"method": "head"}}, "no head to train alone"),
        ({"adapter": {"method": "prefix"}, "pruning": {}}, "no projections to prune"),
        ({"adapter": {"method": "lora"}, "init": "linear"}, "B = 0"),
        ({"init": "small_b"}, "a LoRA's"),
        ({"adapter": {"method": "fusion", "members": ["a", "b"]}, "task": "classification"}, "not for task"),
        ({"adapter": {"method": "fusion", "members": ["a", "b"]}, "pruning": {"widen": 2}}, "'widen'"),
        ({"adapter": {"method": "fusion", "members": ["a", "b", "a"]}}, "a is named twice"),
        ({"recipe": {"steps": 7, "evaluations": 8}}, "8 'evaluations' in 7 steps"),
    ],
)
def test_what_cannot_go_together_is_said(fields, said):
    with pytest.raises(ValidationError, match=said):
        spec(**fields)


def test_what_a_configuration_cannot_be_is_said(base):
    with pytest.raises(InvalidParameter, match="residual"):
        config_of(spec(adapter={"structure": "houlsby", "input": "residual"}), base.shape)
    with pytest.raises(InvalidParameter, match="trained_norms"):
        config_of(spec(adapter={"structure": "pfeiffer", "trained_norms": False}), base.shape)
    fusion = spec(adapter={"method": "fusion", "members": ["a", "b", "c"]})
    one, other = (BottleneckConfig(structure="pfeiffer", bottleneck=m, activation="relu") for m in (4, 8))
    with pytest.raises(Incompatible, match="their 'bottleneck' is 4 or 8"):
        config_of(fusion, base.shape, members=[one, one, other])
    with pytest.raises(Incompatible, match="lm_head is outside of them"):
        config_of(spec(adapter={"method": "lora", "targets": ["*"]}, adamix={}), base.shape)
    houlsby = BottleneckConfig(structure="houlsby", bottleneck=4, activation="gelu")
    with pytest.raises(Incompatible, match="act at two places of a layer"):
        config_of(fusion, base.shape, members=[houlsby] * 3)


def test_a_fusion_takes_members_that_were_pruned(base):
    """With their zeros, which are theirs; the fusion itself is pruned where the spec says so."""
    plain = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
    pruned = [plain.model_copy(update={"pruned": Pruned(score="random", sparsity=0.5, masked=k)}) for k in (8, 9)]
    fusion = spec(adapter={"method": "fusion", "members": ["a", "b"]})
    assert config_of(fusion, base.shape, members=pruned) == FusionConfig(member=plain, members=2)


def test_flags_say_what_json_says():
    flags = {
        "method": "lora",
        "rank": 4,
        "targets": ["q_proj, v_proj", "mlp.*"],
        "init_seed": 3,
        "sparsity": 0.3,
        "score": "random",
        "scope": "layer",
        "pruning_seed": 3,
        "learning_rate": 0.01,
        "beta2": 0.98,
        "clip": 0.5,
        "adamix": None,
    }
    assert spec_of(ParsedFlags(TRAINING, flags)) == spec(
        adapter={"method": "lora", "rank": 4, "targets": ["q_proj", "v_proj", "mlp.*"]},
        init_seed=3,
        pruning={"sparsity": 0.3, "score": "random", "scope": "layer", "seed": 3},
        recipe={"learning_rate": 0.01, "beta2": 0.98, "clip": 0.5},
    )
    assert spec_of(ParsedFlags(TRAINING, {})) == TrainingSpec()


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        ({"method": "prefix", "rank": 3}, typer.BadParameter, "--rank: not an option of --method prefix"),
        ({"method": "fusion"}, typer.BadParameter, "needs --members"),
        ({"share": "up"}, typer.BadParameter, "--share: only with --adamix"),
        ({"scope": "layer"}, typer.BadParameter, "--scope: only with --sparsity, --score or --widen"),
        ({"pruning_seed": 1}, typer.BadParameter, "--pruning-seed: only with --sparsity"),
        ({"pruning_seed": 1, "score": "magnitude"}, typer.BadParameter, "--pruning-seed: only with a --score that"),
        ({"pruning_batches": 8, "score": "random"}, typer.BadParameter, "--pruning-batches: only with --score snip"),
        ({"trained_norms": True}, typer.BadParameter, "--trained-norms: only with --structure houlsby"),
        ({"sparsity": 1.0}, InvalidParameter, "--sparsity: "),
        ({"beta1": 2.0}, InvalidParameter, "--beta1: "),
        ({"method": "fusion", "members": ["a"]}, InvalidParameter, "--members: "),
        ({"adamix": 4, "sparsity": 0.3}, InvalidParameter, "exclude each other"),
    ],
)
def test_what_flags_cannot_say_is_refused_by_their_names(flags, kind, said):
    with pytest.raises(kind, match=said):
        spec_of(ParsedFlags(TRAINING, flags))


@given(count=st.integers(2, 400), share=st.floats(0.01, 0.99))
def test_a_share_that_is_held_out_is_a_partition_in_order(count, share):
    items = list(range(count))
    data = held_out(items, share)
    assert sorted([*data.train, *data.valid]) == items
    assert list(data.train) == sorted(data.train)
    assert list(data.valid) == sorted(data.valid)
    assert len(data.valid) == round(share * count)
    assert held_out(items, share) == data
    assert HELD_OUT_SEED == 0


@pytest.mark.parametrize("rare", [2, 3], ids=["held-out", "trained"])
def test_a_label_of_a_single_text_is_in_the_head_wherever_the_text_is_held_out(base, rare):
    items = [Labelled(f"text {number}", "rare" if number == rare else f"label{number % 2}") for number in range(20)]
    data = held_out(items, 0.25)
    assert inputs_of(spec(task="classification"), base, data).config.head.labels == ("label0", "label1", "rare")
