"""Training adapters on a tiny frozen base: what changes and what does not, alone and resumed, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.verbs.train.training_flags import TRAINING, spec_of
from registry.adapters import attached, create, from_tensors, paper_config
from registry.adapters.weights import init_hash, save_tensors
from registry.errors import Cancelled, Conflict, Incompatible, InvalidParameter, Unavailable
from registry.formats import AdapterContents, write_directory
from registry.names import digest_of
from registry.spec import BankConfig, BottleneckConfig, FusionConfig, HeadConfig, PrefixConfig, Pruned, UnionConfig
from tests.registry.random_adapters import lora
from tests.registry.toy_registry import weights
from tests.training.conftest import TEXTS, VALID, state_hash, train_on
from training.build import config_of, inputs_of, read_member
from training.checkpoint import FILE, Saving
from training.data import HELD_OUT_SEED, Data, held_out
from training.hyperparameters import Hyperparameters, PruningOptions
from training.inputs import TrainingInputs
from training.methods.fusion import fusion_config, fusion_start
from training.methods.lora_targets import lora_for
from training.spec import AdapterRequest, RecipeRequest, TrainingSpec
from training.tasks import LANGUAGE_MODELLING, TASKS
from training.tasks.classification import Labelled
from training.trainer import loss_of

RECIPE = Hyperparameters(steps=8, batch=4, block=32, learning_rate=1e-2, evaluations=2)
PLAIN = paper_config("pfeiffer", bottleneck=4)
BANK = BankConfig(expert=PLAIN, experts=3)
MAM = UnionConfig(members=(PrefixConfig(length=2), paper_config("parallel", bottleneck=4)))
PRUNING = PruningOptions(sparsity=0.5, batches=2)


def train(base, config=PLAIN, texts=TEXTS, valid_texts=VALID, **changes):
    return train_on(base, config, texts, valid_texts, **{"hyperparameters": RECIPE, **changes})


def numbers(**changed):
    return {"hyperparameters": RECIPE.model_copy(update=changed)}


@pytest.fixture(scope="module")
def fused(base):
    members = [train(base, init_seed=seed) for seed in (1, 2)]
    config = fusion_config([member.config for member in members])
    return config, fusion_start([member.tensors for member in members])


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param({}, id="plain"),
        pytest.param({"config": paper_config("houlsby", bottleneck=4)}, id="houlsby"),
        pytest.param({"config": paper_config("parallel", bottleneck=4), "init": "zero_up"}, id="parallel"),
        pytest.param({"config": PrefixConfig(length=3)}, id="prefix"),
        pytest.param({"config": MAM}, id="mam"),
        pytest.param({"config": BANK, "consistency": "paper"}, id="paper"),
        pytest.param({"config": BANK, "consistency": "released"}, id="released"),
        pytest.param({"config": BANK, "consistency": "none"}, id="none"),
        pytest.param({"pruning": PRUNING}, id="snip"),
        pytest.param({"config": MAM, "pruning": PRUNING, "init": "linear"}, id="mam-snip"),
        pytest.param({"config": "fused"}, id="fusion"),
        pytest.param({"config": "fused", "pruning": PRUNING}, id="fusion-snip"),
        pytest.param({"config": "lora"}, id="lora"),
        pytest.param({"config": "lora", "init": "small_b", "pruning": PRUNING}, id="lora-snip"),
    ],
)
def test_everything_that_trains_helps_leaves_the_base_alone_and_is_resumed_to_the_same_bits(base, fused, tmp_path, ask):
    ask, calls = dict(ask), []
    if ask.get("config") == "fused":
        ask["config"], ask["start"] = fused
    if ask.get("config") == "lora":
        ask["config"] = lora_for(base.shape, rank=2, alpha=4)
    base_hash = state_hash(base.model)
    whole = train(base, **ask)
    assert state_hash(base.model) == base_hash
    assert not any(p.requires_grad or p.grad is not None for p in base.model.parameters())
    assert whole.record["valid_perplexity"] < whole.record["valid_perplexity_before"]
    with pytest.raises(Cancelled):
        train(base, **ask, saving=Saving(tmp_path), should_stop=lambda: calls.append(1) or len(calls) > 3)
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


def test_one_init_seed_gives_one_init_hash_whatever_is_trained(base):
    first, second, reseeded = train(base), train(base, **numbers(data_seed=9)), train(base, init_seed=1)
    fresh = create(PLAIN, base.shape, seed=0)
    assert first.init_hash == second.init_hash == init_hash(fresh.state_dict()) != reseeded.init_hash
    assert first.provenance.init_source == "trained_here"
    assert save_tensors(first.tensors) != save_tensors(second.tensors)


def test_the_record_is_json_and_says_how_it_was_made(base):
    record = json.loads(json.dumps(train(base, **numbers(steps=12, evaluations=3)).record, allow_nan=False))
    expected = {
        "steps": 12,
        "texts": len(TEXTS),
        "tokens_trained": 12 * 4 * 31,
        "base": {"fingerprint": base.shape.fingerprint, "dtype": "float32"},
        "data": {"train": digest_of(TEXTS), "valid": digest_of(VALID)},
        "data_seed": 0,
        "schedule": "linear",
        "dtype": "float32",
    }
    assert {name: record[name] for name in expected} == expected
    assert [step for step, _ in record["valid_history"]] == [0, 4, 8, 12]
    assert [step for step, _ in record["train_history"]] == list(range(1, 13))
    assert record["train_history"][-1][1] < record["train_history"][0][1]
    assert record["tokens_available"] + record["tokens_left_out"] == sum(len(base.tokenize(text)) for text in TEXTS)


def test_bfloat16_trains_too_and_the_adapter_stays_float32(base):
    base_hash = state_hash(base.model)
    config = paper_config("houlsby", bottleneck=8)
    trained, plain = train(base, config, **numbers(dtype="bfloat16")), train(base, config)
    assert state_hash(base.model) == base_hash
    assert {tensor.dtype for tensor in trained.tensors.values()} == {torch.float32}
    assert trained.record["valid_perplexity"] < trained.record["valid_perplexity_before"]
    assert trained.record["valid_perplexity"] == pytest.approx(plain.record["valid_perplexity"], rel=0.05)
    assert trained.record["valid_perplexity_before"] != plain.record["valid_perplexity_before"]


def test_memory_that_does_not_suffice_is_a_sentence_with_the_numbers_to_lower(base, monkeypatch):
    monkeypatch.setattr("training.trainer.loss_of", lambda *_: lambda _rows: torch.empty(2**50))
    with pytest.raises(Unavailable, match=r"4 sequences of 32 tokens at once: use a smaller batch") as caught:
        train(base)
    assert caught.value.param == "batch"


def test_backward_stops_at_the_first_adapter(base):
    """The first adapter's input needs no gradient, so nothing below it is kept for a backward pass."""
    adapter = create(paper_config("bapna_firat", bottleneck=4), base.shape, seed=0)
    needs = {}
    handles = [
        layer.mlp.register_forward_hook(lambda _m, _a, out, i=i: needs.update({i: out.requires_grad}))
        for i, layer in enumerate(base.model.transformer.h)
    ]
    with attached(base.model, adapter):
        loss_of(base)(torch.randint(0, 300, (2, 16)))
    for handle in handles:
        handle.remove()
    assert needs == {0: False, 1: True}


# --- start --------------------------------------------------------------------------------------------


def test_a_start_replaces_initial_tensors_by_name_and_is_named_in_the_record(base):
    name = "layers.0.ffn.down.weight"
    value = torch.full((4, 32), 0.01)
    still = RECIPE.model_copy(update={"steps": 1, "learning_rate": 1e-30})
    plain, started = train(base, hyperparameters=still), train(base, hyperparameters=still, start={name: value})
    assert torch.equal(started.tensors[name], value)
    unreplaced = [key for key in plain.tensors if key != name]
    assert all(torch.equal(started.tensors[key], plain.tensors[key]) for key in unreplaced)
    fresh = create(PLAIN, base.shape, seed=0).state_dict()
    assert started.init_hash == init_hash({**fresh, name: value}) != plain.init_hash
    assert started.record["start"] == init_hash({name: value})
    assert "start" not in plain.record
    assert torch.equal(value, torch.full((4, 32), 0.01))


def test_the_members_of_a_fusion_stay_as_they_came(base, fused):
    config, start = fused
    trained = train(base, config, start=start)
    assert all(torch.equal(trained.tensors[name], value) for name, value in start.items())
    assert trained.record["parameters"]["trained"] == sum(
        tensor.numel() for name, tensor in trained.tensors.items() if name not in start
    )


# --- banks and pruning --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"init": "zero_up", "pruning": PRUNING}, InvalidParameter, "zero"),
        ({"start": {"layers.9.ffn.down.weight": torch.zeros(4, 32)}}, Incompatible, "not expected"),
        ({"start": {"layers.0.ffn.down.weight": torch.zeros(5, 32)}}, Incompatible, "has shape"),
    ],
)
def test_options_that_do_not_go_together_and_a_start_of_other_tensors_are_refused(base, changes, error, message):
    with pytest.raises(error, match=message):
        train(base, **changes)


@pytest.mark.parametrize(
    ("earlier", "now", "pattern"),
    [
        ({}, numbers(learning_rate=2e-2), r"learning_rate \(0.01 there, 0.02 here\)"),
        ({}, numbers(schedule="cosine"), r"schedule \(\"linear\" there"),
        ({}, {"texts": TEXTS[::-1]}, r"data.train \("),
        ({}, {"valid_texts": VALID[1:]}, r"data.valid \("),
        ({}, {"config": paper_config("pfeiffer", bottleneck=8)}, r"config.bottleneck \(4 there, 8 here\)"),
        ({}, {"init_seed": 5}, r"init_seed \(0 there, 5 here\)"),
        ({}, {"init": "linear"}, r"init \("),
        ({"pruning": PRUNING}, {}, r"pruning \("),
        ({"pruning": PRUNING}, {"pruning": PruningOptions(sparsity=0.25, batches=2)}, r"pruning.sparsity \(0.5 there"),
        ({"config": BANK}, {"config": BANK, "consistency": "paper"}, r'consistency \("released" there, "paper" here'),
        ({"config": BANK}, {"config": BankConfig(expert=PLAIN, experts=2)}, r"config.experts \(3 there"),
        ({}, {"start": {"layers.0.ffn.down.weight": torch.zeros(4, 32)}}, r"start \(null there"),
    ],
)
def test_the_checkpoint_of_another_training_is_refused_with_what_differs(base, tmp_path, earlier, now, pattern):
    with pytest.raises(Cancelled):
        train(base, **earlier, saving=Saving(tmp_path), should_stop=lambda: True)
    saved = (tmp_path / FILE).read_bytes()
    with pytest.raises(Conflict, match=pattern) as caught:
        train(base, **now, saving=Saving(tmp_path))
    assert any(pattern.split(r" \(")[0] in problem for problem in caught.value.problems)
    assert (tmp_path / FILE).read_bytes() == saved


# --- records ------------------------------------------------------------------------------------------


def test_what_is_not_asked_for_has_no_key_in_the_record(base):
    keys = set(TrainingInputs(PLAIN, Data(TEXTS, VALID), RECIPE).record(base))
    assert keys == {"task", "base", "init", "data", *RECIPE.model_dump()}
    assert TrainingInputs(PLAIN, Data([], []), RECIPE, TASKS["summarisation"]).record(base)["prompt"] == "\n\nSummary:"


def test_going_on_with_other_threads_is_noted(base, tmp_path):
    calls = []
    with pytest.raises(Cancelled):
        train(base, saving=Saving(tmp_path), should_stop=lambda: calls.append(1) or len(calls) > 2)
    torch.set_num_threads(2)
    try:
        resumed = train(base, saving=Saving(tmp_path))
    finally:
        torch.set_num_threads(1)
    assert resumed.resume_note == "The last bits may differ from an unbroken training's: threads (1 there, 2 here)."
    assert [entry["threads"] for entry in resumed.record["made_with"]] == [1, 2]


def test_the_record_says_how_a_lora_starts_wherever_it_is(base):
    lora, head = lora_for(base.shape, rank=2, alpha=4), HeadConfig(task="classification", labels=("a", "b"))

    def init_of(config, init="near_identity"):
        return TrainingInputs(config, Data(TEXTS, VALID), RECIPE, init=init).record(base)["init"]

    assert init_of(lora) == init_of(BankConfig(expert=lora)) == init_of(UnionConfig(members=(lora, head))) == "zero_b"
    assert init_of(lora, "small_b") == init_of(BankConfig(expert=lora), "small_b") == "small_b"
    assert init_of(PLAIN) == init_of(BANK) == init_of(UnionConfig(members=(lora, PLAIN))) == "near_identity"


# --- a spec and its flags -------------------------------------------------------------------------


def spec(**fields: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(fields)


def test_every_field_of_a_spec_has_a_flag():
    assert set(RecipeRequest.model_fields) == set(Hyperparameters.model_fields)
    assert {f"recipe.{name}" for name in RecipeRequest.model_fields} <= set(TRAINING.by_path)
    adapter = {name for request in get_args(get_args(AdapterRequest)[0]) for name in request.model_fields}
    assert {f"adapter.{name}" for name in adapter} <= set(TRAINING.by_path)
    for field in ("adamix", "pruning"):
        (model, _) = get_args(TrainingSpec.model_fields[field].annotation)
        assert {f"{field}.{name}" for name in model.model_fields} <= set(TRAINING.by_path)


def test_what_is_left_open_is_the_papers(base):
    parallel = config_of(spec(adapter={"structure": "parallel"}), base.shape)
    assert (parallel.scale, parallel.activation) == (4.0, "relu")
    assert spec(adapter={"structure": "parallel"}).start == spec(adapter={"method": "mam"}).start == "zero_up"
    assert spec().start == "near_identity"
    assert config_of(spec(adapter={"method": "lora", "rank": 4}), base.shape).groups[0].alpha == 8.0
    assert spec().recipe.on(64).block == 64
    assert spec().recipe.on(4096).block == 512
    for pruning, sparsity in (({}, 0.4), ({"widen": 4}, 0.75), ({"widen": 4, "sparsity": 0.1}, 0.1)):
        assert spec(pruning=pruning).pruning.options().sparsity == sparsity
    bank = config_of(spec(adapter={"bottleneck": 4}, adamix={}), base.shape)
    assert (bank.experts, bank.share, bank.expert.bottleneck) == (4, "up", 4)


@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_what_cannot_go_together_is_said(fields, message):
    with pytest.raises(ValidationError, match=message):
        spec(**fields)


def test_what_a_configuration_cannot_be_is_said(base):
    fusion = {"adapter": {"method": "fusion", "members": ["a", "b", "c"]}}
    narrow, wide = (BottleneckConfig(structure="pfeiffer", bottleneck=m, activation="relu") for m in (4, 8))
    houlsby = BottleneckConfig(structure="houlsby", bottleneck=4, activation="gelu")
    for fields, members, error, message in (
        ({"adapter": {"structure": "houlsby", "input": "residual"}}, [], InvalidParameter, "residual"),
        ({"adapter": {"structure": "pfeiffer", "trained_norms": False}}, [], InvalidParameter, "trained_norms"),
        ({"adapter": {"method": "lora", "targets": ["*"]}, "adamix": {}}, [], Incompatible, "lm_head is outside of"),
        (fusion, [narrow, narrow, wide], Incompatible, "their 'bottleneck' is 4 or 8"),
        (fusion, [houlsby] * 3, Incompatible, "act at two places of a layer"),
    ):
        with pytest.raises(error, match=message):
            config_of(spec(**fields), base.shape, members=members)


def test_a_member_of_a_fusion_that_is_no_bottleneck_is_refused(base, tmp_path):
    write_directory(tmp_path / "lora", AdapterContents(config=lora(), weights=weights(0, lora())))
    with pytest.raises(Incompatible, match="has the method lora, and a fusion is over bottleneck adapters"):
        read_member(tmp_path / "lora", base.shape)


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
    ("flags", "kind", "message"),
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
def test_what_flags_cannot_say_is_refused_by_their_names(flags, kind, message):
    with pytest.raises(kind, match=message):
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
