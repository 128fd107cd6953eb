"""MAM, unions, heads and fusions: each member does what it does alone, and what does not go together is refused."""

from __future__ import annotations

import json
import math
import re
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from registry.adapters import attached, create, expected_tensors, from_tensors, paper_config
from registry.adapters.fusion import ATTENTION
from registry.adapters.head import head_module
from registry.adapters.initial import INITS
from registry.adapters.weights import adapter_digest, init_hash
from registry.base_model.likelihood import hidden_states
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible
from registry.spec import (
    BaseShape,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    Pruned,
    UnionConfig,
)
from tests.registry.adapters.logits import IDS, logits
from tests.registry.adapters.test_families import by_hand, outputs
from tests.registry.random_adapters import drawn
from tests.repository import REPOSITORY
from tests.tiny_models import TINY_ENCODERS
from training.methods.fusion import fusion_config, fusion_start

ON_BASES = ("gpt2", "llama", "qwen2", "opt")
PARALLEL = paper_config("parallel", bottleneck=4)
MAM = UnionConfig(members=(PrefixConfig(length=3), PARALLEL))
LABELS = HeadConfig(task="classification", labels=("no", "yes", "maybe"))
SPANS = HeadConfig(task="question_answering", labels=("start", "end"))


def lora(base: LoadedBase) -> LoraConfig:
    return LoraConfig.of({path: LoraModule(2, 6.0) for path in base.shape.linears if "lm_head" not in path})


def member_tensors(tensors: dict[str, Tensor], method: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{method}."): t for name, t in tensors.items() if name.startswith(f"{method}.")}


def test_mam_is_the_prefix_in_the_cache_and_the_bottleneck_beside_each_ffn(base: LoadedBase) -> None:
    """The prefix as states that were cached, the parallel adapter written out over the base's own modules."""
    tensors = drawn(MAM, base.shape)
    computed = logits(base.model, from_tensors(MAM, base.shape, tensors))
    heads, size = base.shape.kv
    states = tensors["prefix.prompt_embeddings"].view(3, 2, 2, heads, size).permute(1, 2, 3, 0, 4)
    cache = DynamicCache()
    for layer in range(2):
        keys, values = (states[layer, which].unsqueeze(0).expand(2, -1, -1, -1) for which in (0, 1))
        cache.update(keys, values, layer)
    layers_by_hand = by_hand(base.shape.model_type, base.model, PARALLEL, member_tensors(tensors, "bottleneck"))
    with torch.inference_mode():
        expected = layers_by_hand(IDS, past_key_values=cache).logits
    torch.testing.assert_close(computed, expected, rtol=0, atol=1e-5)


def test_gradients_reach_every_member_of_a_union_and_nothing_of_the_base(base: LoadedBase) -> None:
    union = UnionConfig(members=(*MAM.members, lora(base)))
    adapter = from_tensors(union, base.shape, drawn(union, base.shape))
    with attached(base.model, adapter):
        base.model(IDS).logits.logsumexp(-1).mean().backward()
    for name, parameter in adapter.named_parameters():
        assert parameter.grad.any(), name
    assert all(parameter.grad is None for parameter in base.model.parameters())


# --- unions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", INITS)
def test_each_member_starts_as_it_starts_alone(base: LoadedBase, init: str) -> None:
    members = (paper_config("houlsby", bottleneck=3), lora(base), PrefixConfig(length=2), LABELS)
    state = create(
        UnionConfig(members=members),
        base.shape,
        seed=5,
        init=init,
        base=base.model,  # type: ignore[arg-type]
    ).state_dict()
    for member in members:
        alone = create(member, base.shape, seed=5, init=init, base=base.model).state_dict()  # type: ignore[arg-type]
        assert init_hash(member_tensors(state, member.method)) == init_hash(alone)


def test_a_lora_is_before_a_bottleneck_at_the_same_module(bases) -> None:
    """On OPT both can sit on fc2: the LoRA changes the module, the bottleneck reads what the module then gives."""
    base = bases("opt")
    both = UnionConfig(
        members=(
            BottleneckConfig(structure="pfeiffer", bottleneck=3, activation="gelu"),
            LoraConfig.of({"model.decoder.layers.0.fc2": LoraModule(2, 4.0)}),
        )
    )
    tensors = drawn(both, base.shape)
    computed = logits(base.model, from_tensors(both, base.shape, tensors))
    module = base.model.get_submodule("model.decoder.layers.0.fc2")
    a, b = (tensors[f"lora.base_model.model.model.decoder.layers.0.fc2.lora_{x}.weight"] for x in "AB")
    weight = module.weight.clone()
    try:
        with torch.no_grad():
            module.weight += 2.0 * b @ a
        expected = logits(base.model, from_tensors(both.members[0], base.shape, member_tensors(tensors, "bottleneck")))
    finally:
        module.weight.data = weight
    torch.testing.assert_close(computed, expected, rtol=0, atol=1e-4)


def test_the_digest_has_the_label_map_in_it(gpt2: LoadedBase) -> None:
    longer_labels = HeadConfig(task="classification", labels=("yes", "no", "maybe"))
    tensors = drawn(UnionConfig(members=(PARALLEL, LABELS)), gpt2.shape)
    digests = {
        adapter_digest(gpt2.shape.fingerprint, UnionConfig(members=(PARALLEL, head)), tensors)
        for head in (LABELS, longer_labels)
    }
    assert len(digests) == 2


# --- heads ----------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), padded_left=st.booleans(), causal=st.booleans())
def test_classification_reads_one_token_wherever_the_padding_is(gpt2, lengths, padded_left, causal) -> None:
    shape = gpt2.shape if causal else gpt2.shape.model_copy(update={"kind": "encoder"})
    head = create(LABELS, shape, seed=1)
    hidden = torch.randn(len(lengths), 6, 32, generator=torch.Generator().manual_seed(0))
    starts = [6 - n if padded_left else 0 for n in lengths]
    mask = torch.zeros(len(lengths), 6, dtype=torch.int64)
    for row, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        mask[row, start : start + n] = 1
    read = [start + n - 1 if causal else start for start, n in zip(starts, lengths, strict=True)]
    expected = torch.stack([head.out(hidden[row, place]) for row, place in enumerate(read)])
    torch.testing.assert_close(head.logits(hidden, mask), expected)
    torch.testing.assert_close(head.logits(hidden, mask.bool()), expected)


def test_question_answering_reads_every_token(gpt2: LoadedBase) -> None:
    head = create(SPANS, gpt2.shape, seed=1)
    hidden = hidden_states(gpt2.model, IDS, torch.ones_like(IDS))
    span_logits = head.logits(hidden, torch.ones_like(IDS))
    assert span_logits.shape == (2, 6, 2)
    torch.testing.assert_close(span_logits, head.out(hidden))


def test_of_half_precision_states_the_logits_are_single(gpt2: LoadedBase) -> None:
    head = create(LABELS, gpt2.shape, seed=1)
    assert head.logits(torch.zeros(1, 2, 32, dtype=torch.bfloat16), torch.ones(1, 2)).dtype == torch.float32


def test_gradients_reach_head_and_adapter(gpt2: LoadedBase) -> None:
    adapter = create(UnionConfig(members=(PARALLEL, LABELS)), gpt2.shape, seed=0)
    head = head_module(adapter)
    with attached(gpt2.model, adapter):
        hidden = hidden_states(gpt2.model, IDS, torch.ones_like(IDS))
        torch.nn.functional.cross_entropy(head.logits(hidden, torch.ones_like(IDS)), torch.tensor([0, 2])).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in adapter.parameters())


def test_how_a_head_starts(gpt2: LoadedBase) -> None:
    many = HeadConfig(task="classification", labels=tuple(f"label {i}" for i in range(200)))
    weight = create(many, gpt2.shape, seed=1).state_dict()["out.weight"]
    assert weight.abs().max() <= 4e-2
    assert weight.std().item() == pytest.approx(0.8796 * 2e-2, rel=0.05)
    assert not create(many, gpt2.shape, seed=1).state_dict()["out.bias"].any()


def test_the_head_is_found_wherever_it_is(gpt2: LoadedBase) -> None:
    for config, has in ((LABELS, True), (UnionConfig(members=(PARALLEL, SPANS)), True), (MAM, False)):
        assert (head_module(create(config, gpt2.shape, seed=0, base=gpt2.model)) is not None) == has
        assert (config.head is not None) == has


# --- fusions --------------------------------------------------------------------------------------


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
    match = HUB.fullmatch(name)
    if match["part"]:
        return f"layers.{match['layer']}.fusion.{match['part']}.{match['kind']}"
    number = ("one", "two").index(match["member"])
    return f"layers.{match['layer']}.member{number}.ffn.{match['side']}.{match['kind']}"


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
        computed = model(torch.tensor(recorded["tokens"])).logits
    torch.testing.assert_close(computed.double(), torch.tensor(recorded[kind]["logits"]).double(), rtol=0, atol=1e-5)


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name"), [*product(ON_BASES, MEMBERS), *((family, "pfeiffer-residual") for family in TINY_ENCODERS)]
)
def test_a_fusion_of_copies_is_the_member_where_the_value_is_the_identity(bases, family: str, name: str) -> None:
    """So it acts where its members act, and reads what they read, on every family."""
    base, member = bases(family), MEMBERS[name]
    tensors = drawn(member, base.shape)
    config = FusionConfig(member=member, members=3)
    start = create(config, base.shape, seed=0).state_dict() | fusion_start([tensors] * 3)
    with torch.no_grad():
        plain = outputs(base)
        with attached(base.model, from_tensors(member, base.shape, tensors)):
            expected = outputs(base)
        with attached(base.model, from_tensors(config, base.shape, start)):
            computed = outputs(base)
    torch.testing.assert_close(computed, expected, rtol=0, atol=1e-4)
    assert (expected - plain).abs().max() > 1e-2


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
    first, second = (create(config, gpt2.shape, seed=seed).state_dict() for seed in (1, 2))
    assert torch.equal(first["layers.1.fusion.value.weight"], torch.eye(32))
    assert torch.equal(first["layers.0.member1.ffn.norm.weight"], torch.ones(32))
    for projection in ("query", "key"):
        weight = first[f"layers.0.fusion.{projection}.weight"]
        assert 0.9 / math.sqrt(32) < weight.abs().max() <= 1 / math.sqrt(32)
        assert not torch.equal(weight, second[f"layers.0.fusion.{projection}.weight"])
        assert not torch.equal(weight, first[f"layers.1.fusion.{projection}.weight"])


# --- from trained adapters ------------------------------------------------------------------------


def test_trained_members_are_in_their_places(gpt2: LoadedBase) -> None:
    member = MEMBERS["bapna_firat"]
    trained = [drawn(member, gpt2.shape, seed) for seed in range(3)]
    config = fusion_config([member] * 3)
    assert config == FusionConfig(member=member, members=3)
    start = fusion_start(trained)
    assert set(start) == {name for name in expected_tensors(config, gpt2.shape) if ATTENTION not in name}
    assert torch.equal(start["layers.1.member2.ffn.up.weight"], trained[2]["layers.1.ffn.up.weight"])
    assert torch.equal(start["layers.0.member0.ffn.norm.bias"], trained[0]["layers.0.ffn.norm.bias"])


def test_pruned_members_are_taken_with_their_zeros(gpt2: LoadedBase) -> None:
    pruned = PFEIFFER.model_copy(update={"pruned": Pruned(score="random", sparsity=0.5, masked=10)})
    assert fusion_config([PFEIFFER, pruned]) == FusionConfig(member=PFEIFFER, members=2)
    tensors = drawn(PFEIFFER, gpt2.shape)
    masks = {"layers.0.ffn.down.mask": torch.zeros(16, dtype=torch.uint8)}
    start = fusion_start([tensors, tensors | masks])
    assert not any(name.endswith("mask") for name in start)


@pytest.mark.parametrize(
    ("members", "reasons"),
    [
        (
            [PFEIFFER, PFEIFFER.model_copy(update={"bottleneck": 8, "activation": "gelu"})],
            ["'bottleneck' is 4 or 8", "'activation' is relu or gelu"],
        ),
        ([paper_config("houlsby")] * 2, ["two places of a layer"]),
    ],
)
def test_what_cannot_be_fused_is_refused_with_every_reason(members, reasons) -> None:
    with pytest.raises(Incompatible, match="cannot be fused") as caught:
        fusion_config(members)
    assert len(caught.value.problems) == len(reasons)
    for problem, reason in zip(caught.value.problems, reasons, strict=True):
        assert reason in problem


def test_members_that_do_not_go_together_are_refused(gpt2: LoadedBase) -> None:
    tensors = drawn(PFEIFFER, gpt2.shape)
    fewer = {name: tensor for name, tensor in tensors.items() if not name.startswith("layers.1.")}
    with pytest.raises(Incompatible, match="Member 2 is no bottleneck adapter like the first"):
        fusion_start([tensors, fewer])
    with pytest.raises(Incompatible, match=r"Member 1.*'prompt_embeddings'"):
        fusion_start([{"prompt_embeddings": torch.zeros(1)}] * 2)
