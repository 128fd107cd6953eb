"""Heads, and unions: MAM by hand, task adapters, and that each member is what it is alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from registry.adapters import attached, create, from_tensors, paper_config
from registry.adapters.head import head_module
from registry.adapters.initial import INITS
from registry.adapters.weights import adapter_digest, init_hash
from registry.base_model.likelihood import hidden_states
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible
from registry.spec import (
    BottleneckConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    UnionConfig,
)
from tests.registry.adapters.logits import IDS, logits
from tests.registry.adapters.test_families import by_hand
from tests.registry.random_adapters import drawn

ON_BASES = ("gpt2", "llama", "qwen2", "opt")
PARALLEL = paper_config("parallel", bottleneck=4)
MAM = UnionConfig(members=(PrefixConfig(length=3), PARALLEL))
LABELS = HeadConfig(task="classification", labels=("no", "yes", "maybe"))
SPANS = HeadConfig(task="question_answering", labels=("start", "end"))


def lora(base: LoadedBase) -> LoraConfig:
    return LoraConfig.of({path: LoraModule(2, 6.0) for path in base.shape.linears if "lm_head" not in path})


def own(tensors: dict[str, Tensor], method: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{method}."): t for name, t in tensors.items() if name.startswith(f"{method}.")}


def test_mam_is_the_prefix_in_the_cache_and_the_bottleneck_beside_each_ffn(base: LoadedBase) -> None:
    """The prefix as states that were cached, the parallel adapter written out over the base's own modules."""
    tensors = drawn(MAM, base.shape)
    found = logits(base.model, from_tensors(MAM, base.shape, tensors))
    heads, size = base.shape.kv
    states = tensors["prefix.prompt_embeddings"].view(3, 2, 2, heads, size).permute(1, 2, 3, 0, 4)
    cache = DynamicCache()
    for layer in range(2):
        keys, values = (states[layer, which].unsqueeze(0).expand(2, -1, -1, -1) for which in (0, 1))
        cache.update(keys, values, layer)
    layers_by_hand = by_hand(base.shape.model_type, base.model, PARALLEL, own(tensors, "bottleneck"))
    with torch.inference_mode():
        wanted = layers_by_hand(IDS, past_key_values=cache).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_gradients_reach_every_member_of_mam(base: LoadedBase) -> None:
    adapter = from_tensors(MAM, base.shape, drawn(MAM, base.shape))
    with attached(base.model, adapter):
        base.model(IDS).logits.logsumexp(-1).mean().backward()
    for name, parameter in adapter.named_parameters():
        assert parameter.grad.any(), name


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
    for one in members:
        alone = create(one, base.shape, seed=5, init=init, base=base.model).state_dict()  # type: ignore[arg-type]
        assert init_hash(own(state, one.method)) == init_hash(alone)


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
    found = logits(base.model, from_tensors(both, base.shape, tensors))
    module = base.model.get_submodule("model.decoder.layers.0.fc2")
    a, b = (tensors[f"lora.base_model.model.model.decoder.layers.0.fc2.lora_{x}.weight"] for x in "AB")
    kept = module.weight.clone()
    try:
        with torch.no_grad():
            module.weight += 2.0 * b @ a
        wanted = logits(base.model, from_tensors(both.members[0], base.shape, own(tensors, "bottleneck")))
    finally:
        module.weight.data = kept
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_reasons_of_all_members_are_told(bases) -> None:
    union = UnionConfig(members=(PARALLEL, LABELS, PrefixConfig(length=2), lora(bases("gpt2"))))
    adapter = create(union, bases("gpt2").shape, seed=0, init="linear")
    with pytest.raises(Incompatible, match="does not fit") as found:
        adapter.check_fit(bases("llama").model)
    told = " ".join(found.value.problems)
    for reason in ("family 'gpt2'", "The prefix is for", "transformer.h.0"):
        assert reason in told


def test_the_digest_has_the_label_map_in_it(gpt2: LoadedBase) -> None:
    other = HeadConfig(task="classification", labels=("yes", "no", "maybe"))
    tensors = drawn(UnionConfig(members=(PARALLEL, LABELS)), gpt2.shape)
    digests = {
        adapter_digest(gpt2.shape.fingerprint, UnionConfig(members=(PARALLEL, head)), tensors)
        for head in (LABELS, other)
    }
    assert len(digests) == 2


# --- heads ----------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), left=st.booleans(), causal=st.booleans())
def test_classification_reads_one_token_wherever_the_padding_is(gpt2, lengths, left, causal) -> None:
    shape = gpt2.shape if causal else gpt2.shape.model_copy(update={"kind": "encoder"})
    head = create(LABELS, shape, seed=1)
    hidden = torch.randn(len(lengths), 6, 32, generator=torch.Generator().manual_seed(0))
    starts = [6 - n if left else 0 for n in lengths]
    mask = torch.zeros(len(lengths), 6, dtype=torch.int64)
    for row, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        mask[row, start : start + n] = 1
    read = [start + n - 1 if causal else start for start, n in zip(starts, lengths, strict=True)]
    wanted = torch.stack([head.out(hidden[row, place]) for row, place in enumerate(read)])
    torch.testing.assert_close(head.logits(hidden, mask), wanted)
    torch.testing.assert_close(head.logits(hidden, mask.bool()), wanted)


def test_question_answering_reads_every_token(gpt2: LoadedBase) -> None:
    head = create(SPANS, gpt2.shape, seed=1)
    hidden = hidden_states(gpt2.model, IDS, torch.ones_like(IDS))
    found = head.logits(hidden, torch.ones_like(IDS))
    assert found.shape == (2, 6, 2)
    torch.testing.assert_close(found, head.out(hidden))


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


def test_another_hidden_size_is_refused(gpt2: LoadedBase) -> None:
    wide = create(LABELS, gpt2.shape.model_copy(update={"hidden_size": 48}), seed=0)
    with pytest.raises(Incompatible, match=r"size 48; this base model's are of size 32"):
        wide.check_fit(gpt2.model)
