"""Banks of AdaMix: their tensors, how they start, which copies a route puts to use, and their merge."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import attached, create, expected_tensors, from_tensors
from registry.adapters.experts import BankAdapter, Routes, mean_of, merge_bank
from registry.adapters.head import head_module
from registry.adapters.weights import init_hash
from registry.spec import (
    BankConfig,
    BaseShape,
    BottleneckConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    UnionConfig,
)
from tests.registry.adapters.logits import IDS, logits
from tests.registry.random_adapters import SHAPE, STRUCTURES, bottleneck, drawn, lora

SHARES = ("up", "down", "none")
EXPERTS = {**{kind: bottleneck(kind) for kind in STRUCTURES}, "lora": lora(leaves=("c_attn", "c_fc"))}
HEAD = HeadConfig(task="classification", labels=("good", "bad"))


def bank_config(expert: BottleneckConfig | LoraConfig, **fields: Any) -> BankConfig:
    return BankConfig.model_validate({"expert": expert, **fields})


def bank_of(config: BankConfig, shape: BaseShape, seed: int = 0) -> BankAdapter:
    return from_tensors(config, shape, drawn(config, shape, seed))


def along(routes: Routes, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The plain adapter that a route makes of a bank, taken apart by hand."""
    return {
        name: tensor[routes[name.rpartition(".")[0]]] if name.rpartition(".")[0] in routes else tensor
        for name, tensor in tensors.items()
    }


def expert_on(kind: str, shape: BaseShape) -> BottleneckConfig | LoraConfig:
    if kind == "lora":
        return LoraConfig.of({path: LoraModule(3, 6.0) for path in shape.linears if ".0." in path})
    return bottleneck(kind)


# --- tensors --------------------------------------------------------------------------------------


def test_names_are_the_experts_and_copies_have_a_leading_dimension():
    config = bank_config(bottleneck("bapna_firat"), experts=3)
    assert expected_tensors(config, SHAPE.model_copy(update={"num_layers": 1})) == {
        "layers.0.ffn.down.bias": (3, 4),
        "layers.0.ffn.down.weight": (3, 4, 16),
        "layers.0.ffn.norm.bias": (16,),
        "layers.0.ffn.norm.weight": (16,),
        "layers.0.ffn.up.bias": (16,),
        "layers.0.ffn.up.weight": (16, 4),
    }
    path = "base_model.model.transformer.h.1.attn.c_attn"
    both = expected_tensors(bank_config(lora(), experts=2, share="down"), SHAPE)
    assert (both[f"{path}.lora_A.weight"], both[f"{path}.lora_B.weight"]) == ((4, 16), (2, 48, 4))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", ["houlsby", "bapna_firat", "lora"])
def test_every_copy_starts_as_the_plain_adapter_does(kind, share, base):
    shape = base.shape
    expert = expert_on(kind, shape)
    plain = create(expert, shape, seed=7, base=base.model).state_dict()
    for experts in (3, 7):
        bank = create(bank_config(expert, experts=experts, share=share), shape, seed=7, base=base.model)
        started = bank.state_dict()
        assert all(parameter.requires_grad for parameter in bank.parameters())
        assert init_hash(merge_bank(bank.config, started)) == init_hash(plain)
        for name, tensor in plain.items():
            copies = started[name] if started[name].shape != tensor.shape else started[name][None]
            assert all(torch.equal(expert_tensor, tensor) for expert_tensor in copies)


@pytest.mark.parametrize("expert", [lora(), bottleneck("houlsby")])
def test_a_head_is_shared_and_starts_and_trains_as_a_plain_adapters(expert, base):
    """The tasks of the paper are classifications: the head is no expert of its own."""
    model, shape = base.model, base.shape
    member = expert_on("lora", shape) if isinstance(expert, LoraConfig) else expert
    with_head = UnionConfig(members=(member, HEAD))
    config = BankConfig(expert=with_head, experts=3, share="none")
    assert config.head == HEAD
    assert BankConfig.model_validate(config.model_dump(mode="json")) == config
    assert expected_tensors(config, shape)["head.out.weight"] == (2, shape.hidden_size)
    bank = create(config, shape, seed=4, base=model)
    assert len(bank.projections) == len(bank_of(BankConfig(expert=member, experts=3, share="none"), shape).projections)
    plain = create(with_head, shape, seed=4, base=model).state_dict()
    assert init_hash(merge_bank(config, bank.state_dict())) == init_hash(plain)
    head = head_module(bank)
    with attached(model, bank), bank.routed(bank.draw()):
        head.logits(model.transformer(IDS).last_hidden_state, torch.ones_like(IDS)).sum().backward()
    assert head.out.weight.grad is not None
    assert model.transformer.wte.weight.grad is None


# --- the merge ------------------------------------------------------------------------------------


@given(
    experts=st.integers(2, 9),
    share=st.sampled_from(SHARES),
    kind=st.sampled_from(sorted(EXPERTS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_merge_is_the_mean_and_what_is_shared_is_kept(experts, share, kind, seed):
    config = bank_config(EXPERTS[kind], experts=experts, share=share)
    tensors = drawn(config, SHAPE, seed)
    merged = merge_bank(config, tensors)
    assert {name: tuple(x.shape) for name, x in merged.items()} == expected_tensors(config.expert, SHAPE)
    for name, tensor in tensors.items():
        if tensor.shape == merged[name].shape:
            assert torch.equal(merged[name], tensor)
        else:
            torch.testing.assert_close(merged[name], tensor.double().mean(0).float(), rtol=1e-6, atol=1e-6)


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=8),
    experts=st.integers(2, 64),
)
def test_copies_of_one_merge_to_it_bit_for_bit(values, experts):
    tensor = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(mean_of(tensor.repeat(experts, 1)), tensor)


def test_half_precision_is_merged_in_fp32():
    mean = mean_of(torch.tensor([[1.0], [1.0], [1.0078125]], dtype=torch.bfloat16))
    assert (mean.dtype, mean.item()) == (torch.float32, pytest.approx(1 + 0.0078125 / 3, rel=1e-7))


# --- on a base model --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt2", "parallel"), ("gpt2", "bapna_firat"), ("gpt2", "lora"), ("gpt2", "houlsby"), ("llama", "houlsby")],
)
@pytest.mark.parametrize("share", SHARES)
def test_a_route_is_the_adapter_of_its_copies_and_none_is_the_merge(family, kind, share, bases):
    model, shape = bases(family).model, bases(family).shape
    config = bank_config(expert_on(kind, shape), experts=3, share=share)
    tensors = drawn(config, shape, seed=3)
    bank = bank_of(config, shape, seed=3)
    torch.manual_seed(0)
    routes = bank.draw()
    with torch.no_grad():
        merged = logits(model, from_tensors(config.expert, shape, merge_bank(config, tensors)))
        routed = logits(model, from_tensors(config.expert, shape, along(routes, tensors)))
        assert not torch.allclose(merged, routed, atol=1e-3)
        with attached(model, bank):
            assert torch.equal(logits(model), merged)
            with bank.routed(routes):
                assert torch.equal(logits(model), routed)
            assert torch.equal(logits(model), merged)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", ["houlsby", "lora"])
def test_gradients_reach_the_drawn_experts_and_what_is_shared_and_no_other(kind, share, base):
    model, shape = base.model, base.shape
    bank = bank_of(bank_config(expert_on(kind, shape), experts=4, share=share), shape)
    torch.manual_seed(1)
    routes = bank.draw()
    with attached(model, bank), bank.routed(routes):
        model(IDS).logits.square().mean().backward()
    for name, parameter in bank.named_parameters():
        path = name.rpartition(".")[0]
        if path not in routes:
            assert parameter.grad.abs().sum() > 0, name
            continue
        for number, gradient in enumerate(parameter.grad):
            assert bool(gradient.abs().sum() > 0) == (number == routes[path]), (name, number)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_copy_of_a_bank_is_its_own(base):
    model, shape = base.model, base.shape
    bank = bank_of(bank_config(bottleneck("pfeiffer")), shape)
    bank_copy = copy.deepcopy(bank)
    with torch.no_grad():
        for parameter in bank_copy.parameters():
            parameter.zero_()
        assert torch.equal(logits(model, bank_copy), logits(model))
        assert not torch.equal(logits(model, bank), logits(model))


# --- routes -----------------------------------------------------------------------------------------


def test_routes_are_drawn_uniformly_and_apart_from_each_other():
    bank = bank_of(bank_config(bottleneck("pfeiffer"), share="none"), SHAPE)
    torch.manual_seed(0)
    draws = 1000
    single: Counter[tuple[str, int]] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    first, second = bank.projections[:2]
    for _ in range(draws):
        routes = bank.draw()
        single.update(routes.items())
        pairs[routes[first], routes[second]] += 1
    assert set(single) == {(path, expert) for path in bank.projections for expert in range(4)}
    for count in single.values():  # five standard deviations
        assert abs(count - draws / 4) < 5 * math.sqrt(draws * 3 / 16)
    assert len(pairs) == 16
    for count in pairs.values():
        assert abs(count - draws / 16) < 5 * math.sqrt(draws * 15 / 256)


def test_the_second_of_two_routes_is_another_everywhere_and_uniform_among_them():
    bank = bank_of(bank_config(lora(), share="none"), SHAPE)
    torch.manual_seed(0)
    steps: Counter[int] = Counter()
    draws = 1000
    for _ in range(draws):
        first = bank.draw()
        second = bank.draw(avoiding=first)
        assert second.keys() == first.keys()
        steps.update((second[path] - first[path]) % 4 for path in first)
    assert set(steps) == {1, 2, 3}
    total = draws * len(bank.projections)
    for count in steps.values():
        assert abs(count - total / 3) < 5 * math.sqrt(total * 2 / 9)


def test_routes_are_those_of_the_seed():
    bank = bank_of(bank_config(bottleneck("pfeiffer"), experts=8, share="none"), SHAPE)
    torch.manual_seed(5)
    first = [bank.draw() for _ in range(3)]
    torch.manual_seed(5)
    assert [bank.draw() for _ in range(3)] == first
    assert first[0] != first[1]


def test_a_route_ends_with_its_context_whatever_happens(base):
    model, shape = base.model, base.shape
    bank = bank_of(bank_config(bottleneck("pfeiffer"), experts=2), shape)
    routes = dict.fromkeys(bank.projections, 1)
    with torch.no_grad(), attached(model, bank):
        merged = logits(model)
        with pytest.raises(KeyError), bank.routed(routes):
            raise KeyError("inside")
        assert torch.equal(logits(model), merged)
        with bank.routed(routes):
            outer = logits(model)
            with bank.routed(bank.draw(avoiding=routes)):
                assert not torch.equal(logits(model), outer)
            assert torch.equal(logits(model), outer)
