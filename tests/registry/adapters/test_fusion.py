"""AdapterFusion: against AdapterHub's own, against the formula by hand, its count, and that members stay frozen."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from transformers import AutoModelForCausalLM

from registry.adapters import attached, create, expected_tensors, from_tensors, paper_config
from registry.adapters.fusion import ATTENTION
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible
from registry.spec import BaseShape, BottleneckConfig, FusionConfig, LoraConfig, LoraModule, PrefixConfig, Pruned
from tests.registry.adapters.logits import IDS, logits
from tests.registry.random_adapters import drawn
from tests.repository import REPOSITORY
from training.methods.fusion import fusion_config, fusion_start

ON_BASES = ("gpt2", "llama", "opt")
FIXTURES = REPOSITORY / "tests" / "fixtures"
PFEIFFER = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu", input="residual")
MEMBERS = {
    "pfeiffer": paper_config("pfeiffer", bottleneck=4),
    "pfeiffer-residual": PFEIFFER,
    "bapna_firat": paper_config("bapna_firat", bottleneck=3),
    "parallel": paper_config("parallel", bottleneck=3),
}


# --- AdapterHub -----------------------------------------------------------------------------------

HUB = re.compile(
    r"transformer\.h\.(?P<layer>\d)\.output_adapters\.(?:adapters\.(?P<member>one|two)\.adapter_(?P<side>down|up)(?:\.0)?|"
    r"adapter_fusion_layer\.one,two\.(?P<part>query|key|value))\.(?P<kind>weight|bias)"
)


def ours(name: str) -> str:
    """AdapterHub's name of a fusion's tensor in our words."""
    found = HUB.fullmatch(name)
    if found["part"]:
        return f"layers.{found['layer']}.fusion.{found['part']}.{found['kind']}"
    number = ("one", "two").index(found["member"])
    return f"layers.{found['layer']}.member{number}.ffn.{found['side']}.{found['kind']}"


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        ("seq_bn", PFEIFFER),
        ("seq_bn_module", BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="gelu", scale=0.5)),
    ],
)
def test_logits_are_adapterhubs(kind: str, member: BottleneckConfig) -> None:
    recorded = json.loads((FIXTURES / "adapterhub_fusion.json").read_text())
    tensors = {ours(name): torch.tensor(values) for name, values in recorded[kind]["tensors"].items()}
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "adapterhub" / "gpt2" / "base").eval()
    shape = BaseShape(
        fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=16, num_layers=2, context=32, vocab_size=40
    )
    with attached(model, from_tensors(FusionConfig(member=member, members=2), shape, tensors)), torch.inference_mode():
        found = model(torch.tensor(recorded["tokens"])).logits
    torch.testing.assert_close(found.double(), torch.tensor(recorded[kind]["logits"]).double(), rtol=0, atol=1e-5)


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMBERS)
def test_a_fusion_of_copies_is_the_member_where_the_value_is_the_identity(base: LoadedBase, name: str) -> None:
    """So it acts where its members act, and reads what they read, on every family."""
    member = MEMBERS[name]
    tensors = drawn(member, base.shape)
    config = FusionConfig(member=member, members=3)
    start = create(config, base.shape, seed=0).state_dict() | fusion_start(config, [tensors] * 3)
    wanted = logits(base.model, from_tensors(member, base.shape, tensors))
    plain = logits(base.model)
    found = logits(base.model, from_tensors(config, base.shape, start))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    assert (wanted - plain).abs().max() > 1e-2


def test_it_acts_where_its_members_act_on_encoders_too(encoder: LoadedBase) -> None:
    tensors = drawn(PFEIFFER, encoder.shape)
    config = FusionConfig(member=PFEIFFER, members=2)
    start = create(config, encoder.shape, seed=0).state_dict() | fusion_start(config, [tensors] * 2)
    found = []
    for one in (from_tensors(PFEIFFER, encoder.shape, tensors), from_tensors(config, encoder.shape, start)):
        with attached(encoder.model, one), torch.inference_mode():
            found.append(encoder.model(IDS).last_hidden_state)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)


# --- counts, start, freezing ----------------------------------------------------------------------


def test_only_the_attention_gets_gradients(base: LoadedBase) -> None:
    config = FusionConfig(member=MEMBERS["pfeiffer"], members=2)
    adapter = from_tensors(config, base.shape, drawn(config, base.shape))
    with attached(base.model, adapter):
        base.model(IDS).logits.logsumexp(-1).mean().backward()
    for name, parameter in adapter.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (ATTENTION in name), name


def test_start(gpt2: LoadedBase) -> None:
    config = FusionConfig(member=MEMBERS["bapna_firat"], members=2)
    one, two = (create(config, gpt2.shape, seed=seed).state_dict() for seed in (1, 2))
    assert torch.equal(one["layers.1.fusion.value.weight"], torch.eye(32))
    assert torch.equal(one["layers.0.member1.ffn.norm.weight"], torch.ones(32))
    for part in ("query", "key"):
        weight = one[f"layers.0.fusion.{part}.weight"]
        assert 0.9 / math.sqrt(32) < weight.abs().max() <= 1 / math.sqrt(32)
        assert not torch.equal(weight, two[f"layers.0.fusion.{part}.weight"])
        assert not torch.equal(weight, one[f"layers.1.fusion.{part}.weight"])


# --- from trained adapters ------------------------------------------------------------------------


def test_trained_members_are_in_their_places(gpt2: LoadedBase) -> None:
    member = MEMBERS["bapna_firat"]
    trained = [drawn(member, gpt2.shape, seed) for seed in range(3)]
    config = fusion_config([member] * 3)
    assert config == FusionConfig(member=member, members=3)
    start = fusion_start(config, trained)
    assert set(start) == {name for name in expected_tensors(config, gpt2.shape) if ATTENTION not in name}
    assert torch.equal(start["layers.1.member2.ffn.up.weight"], trained[2]["layers.1.ffn.up.weight"])
    assert torch.equal(start["layers.0.member0.ffn.norm.bias"], trained[0]["layers.0.ffn.norm.bias"])


def test_pruned_members_are_taken_with_their_zeros(gpt2: LoadedBase) -> None:
    pruned = PFEIFFER.model_copy(update={"pruned": Pruned(score="random", sparsity=0.5, masked=10)})
    assert fusion_config([PFEIFFER, pruned]) == FusionConfig(member=PFEIFFER, members=2)
    tensors = drawn(PFEIFFER, gpt2.shape)
    masks = {"layers.0.ffn.down.mask": torch.zeros(16, dtype=torch.uint8)}
    start = fusion_start(FusionConfig(member=PFEIFFER, members=2), [tensors, tensors | masks])
    assert not any(name.endswith("mask") for name in start)


LORA = LoraConfig.of({"transformer.h.0.mlp.c_fc": LoraModule(2, 4.0)})


@pytest.mark.parametrize(
    ("members", "reasons"),
    [
        ([PFEIFFER, LORA, PrefixConfig(length=2)], ["number 2 is lora, number 3 is prefix"]),
        ([PFEIFFER], ["at least 2 members, not 1"]),
        ([], ["at least 2 members, not 0"]),
        (
            [PFEIFFER, PFEIFFER.model_copy(update={"bottleneck": 8, "activation": "gelu"})],
            ["'bottleneck' is 4 or 8", "'activation' is relu or gelu"],
        ),
        ([paper_config("houlsby")] * 2, ["two places of a layer"]),
    ],
)
def test_what_cannot_be_fused_is_refused_with_every_reason(members, reasons) -> None:
    with pytest.raises(Incompatible, match="cannot be fused") as found:
        fusion_config(members)
    assert len(found.value.problems) == len(reasons)
    for problem, reason in zip(found.value.problems, reasons, strict=True):
        assert reason in problem


def test_members_that_do_not_go_together_are_refused(gpt2: LoadedBase) -> None:
    config, tensors = FusionConfig(member=PFEIFFER, members=2), drawn(PFEIFFER, gpt2.shape)
    with pytest.raises(Incompatible, match="has 2 members, not 3"):
        fusion_start(config, [tensors] * 3)
    fewer = {name: tensor for name, tensor in tensors.items() if not name.startswith("layers.1.")}
    with pytest.raises(Incompatible, match="Member 2 is no bottleneck adapter like the first"):
        fusion_start(config, [tensors, fewer])
    with pytest.raises(Incompatible, match=r"Member 1.*'prompt_embeddings'"):
        fusion_start(config, [{"prompt_embeddings": torch.zeros(1)}] * 2)
