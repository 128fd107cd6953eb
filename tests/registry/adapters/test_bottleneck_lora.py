"""Bottlenecks as LoRAs on layers of zeros: the same function, for all structures, widths and mixtures."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.bottleneck import BottleneckAdapter, ffn_edits
from registry.adapters.bottleneck_lora import KINDS, BottleneckKind, kind_of, kinds_named, lora_of, trained_norm
from registry.adapters.bottleneck_mixing import join_bottlenecks
from registry.adapters.sites import layer_sites
from registry.errors import Incompatible, InvalidParameter
from registry.spec import BaseShape, BottleneckConfig
from tests.registry.adapters.logits import logits
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import STRUCTURES, bottleneck, drawn

RANK = 12
"""Of the layers of zeros: wider than every adapter here."""
TINY = BaseShape(
    fingerprint="sha256:" + "0" * 64, model_type="llama", hidden_size=6, num_layers=1, context=8, vocab_size=9
)


class ZeroLayers(AdapterModule):
    """A kind's layers of zeros with a LoRA on each, at the places of a transformers model."""

    def __init__(self, config: BottleneckConfig, shape: BaseShape, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.kind = kind_of(config)
        lora, self.factors = lora_of(config, tensors)
        self.ranks = {path: module.rank for path, module in lora.modules().items()}
        self.shapes = self.kind.layers(shape.hidden_size, RANK)

    def layer(self, number: int, name: str, x: Tensor) -> Tensor:
        """The LoRA's output for a module of that name and size, as vLLM computes it; zeros without one."""
        path = f"model.layers.{number}.{name}"
        inputs, outputs = self.shapes[name]
        assert x.shape[-1] == inputs
        if path not in self.ranks:
            return x.new_zeros((*x.shape[:-1], outputs))
        a, b = (self.factors[f"base_model.model.{path}.lora_{side}.weight"] for side in "AB")
        assert len(a) == b.shape[1] == self.ranks[path]
        a = F.pad(a, (0, inputs - a.shape[1]))
        return x @ a.T @ F.pad(b, (0, 0, 0, outputs - len(b))).T

    def update(self, number: int, site: str, source: Tensor) -> Tensor:
        name = self.kind.sites()[site]
        return self.kind.update(
            source, partial(self.layer, number, f"{name}_down"), partial(self.layer, number, f"{name}_up")
        )

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        for number, sites in enumerate(layer_sites(model)):
            yield from ffn_edits(self.config, sites, partial(self.update, number, "ffn"))
            if self.config.structure == "houlsby":
                yield sites.attention, partial(self.on_attention, number)
                for name, norm in zip(self.kind.norms(), sites.norms, strict=True):
                    yield norm, partial(self.on_norm, number, name)

    def on_attention(self, number: int, _module: nn.Module, _source: Tensor, hidden: Tensor) -> Tensor:
        return hidden + self.update(number, "attention", hidden)

    def on_norm(self, number: int, name: str, norm: Any, source: Tensor, hidden: Tensor) -> Tensor:
        unscaled = source * torch.rsqrt(source.square().mean(-1, keepdim=True) + norm.variance_epsilon)
        return trained_norm(hidden, unscaled, partial(self.layer, number, name))


def in_double(config: BottleneckConfig, shape: BaseShape, tensors: dict[str, Tensor]) -> BottleneckAdapter:
    adapter = BottleneckAdapter(config, shape)
    adapter.load_state_dict({name: tensor.double() for name, tensor in tensors.items()}, assign=True)
    return adapter


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_each_structure_computes_the_same_logits(bases, family):
    base = bases(family)
    model = copy.deepcopy(base.model).double()
    for structure in STRUCTURES:
        config = bottleneck(structure, 5, scale=1.5)
        tensors = drawn(config, base.shape, seed=3)
        expected = logits(model, in_double(config, base.shape, tensors))
        actual = logits(model, ZeroLayers(config, base.shape, tensors))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12 * expected.abs().max().item())


@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 9),
    st.floats(-8, 8, allow_subnormal=False),
    st.integers(0, 2**31),
)
def test_the_layers_compute_the_update_of_any_width_and_scale(name, width, scale, seed):
    kind = KINDS[name]
    config = BottleneckConfig(
        structure=kind.structure, input=kind.input, activation=kind.activation, bottleneck=width, scale=scale
    )
    tensors = drawn(config, TINY, seed)
    source = torch.randn(7, TINY.hidden_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    layers = ZeroLayers(config, TINY, tensors)
    expected = in_double(config, TINY, tensors).layers[0].ffn.update(source)
    actual = layers.update(0, "ffn", source)
    # swish(32) / 32 differs from 1 by 1.3e-14; the terms of the sums are up to some hundred here
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12 * (1 + abs(scale)))


def test_a_soup_side_by_side_is_the_weighted_sum_of_its_ingredients():
    config = bottleneck("bapna_firat", 3)
    ingredients = [drawn(config, TINY, seed) for seed in (1, 2)]
    factors = [lambda _site: 0.25, lambda site: {"layers.0.ffn": 0.5}[site]]
    joined = join_bottlenecks([config] * 2, ingredients, factors)
    soup = ZeroLayers(config.joined({"a": 3, "b": 3}), TINY, joined)
    source = torch.randn(5, TINY.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, second = (ZeroLayers(config, TINY, tensors).update(0, "ffn", source) for tensors in ingredients)
    torch.testing.assert_close(soup.update(0, "ffn", source), 0.25 * first + 0.5 * second, rtol=1e-12, atol=1e-12)


def test_a_pruned_bottleneck_is_its_tensors_with_their_zeros():
    dense = bottleneck("bapna_firat", 3)
    pruned, tensors = sparse(dense, 1, tensors=drawn(dense, TINY))
    (_, actual), (_, expected) = lora_of(pruned, tensors), lora_of(dense, tensors)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert sum(int((tensor == 0).sum()) for tensor in actual.values()) > 20


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_token_without_an_adapter_is_left_as_it_is_bit_for_bit(kind: BottleneckKind):
    source = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)

    def zeros(outputs: int) -> Any:
        return lambda x: x.new_zeros((*x.shape[:-1], outputs))

    assert torch.equal(source + kind.update(source, zeros(RANK), zeros(6)), source)
    assert torch.equal(trained_norm(source, source / 3, zeros(7)), source)


def test_ranks_and_names():
    config, factors = lora_of(bottleneck("houlsby", 3), drawn(bottleneck("houlsby", 3), TINY))
    assert {
        path.removeprefix("model.layers.0.houlsby_gelu_"): module.rank for path, module in config.modules().items()
    } == {
        "down": 4,
        "up": 4,
        "attention_down": 4,
        "attention_up": 4,
        "norm_0": 1,
        "norm_1": 1,
    }
    assert all(config.scaling(module) == 1 for module in config.modules().values())
    assert all(tensor.is_contiguous() for tensor in factors.values())


def test_no_two_kinds_share_a_layer_so_that_vllm_refuses_those_without():
    names = [name for kind in KINDS.values() for name in kind.layers(1, 1)]
    assert len(set(names)) == len(names)


def test_what_has_no_such_layers_is_refused():
    config = bottleneck("bapna_firat", 3, layer_norm_eps=1e-3)
    with pytest.raises(Incompatible, match=r"has the epsilon 0\.001; as a LoRA .* computed with 1e-05"):
        lora_of(config, drawn(config, TINY))
    with pytest.raises(InvalidParameter, match="'pfeiffer' is no kind of bottleneck; kinds are bapna_firat_relu, "):
        kinds_named(("pfeiffer_relu", "pfeiffer"))
    assert kinds_named(("pfeiffer_relu", "pfeiffer_relu")) == [KINDS["pfeiffer_relu"]]
