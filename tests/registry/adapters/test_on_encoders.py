"""Adapters on encoders: against BERT's layer written out by hand, and what LoRAs, unions and heads do there."""

from __future__ import annotations

import copy
from types import MethodType

import pytest
import torch

from registry.adapters import attached, create, expected_tensors, from_tensors
from registry.adapters.sites import FAMILIES
from registry.base_model.likelihood import hidden_states, padded
from registry.errors import Incompatible
from registry.spec import LoraConfig, LoraModule
from tests.registry.adapters.test_families import CASES, Hand, agree
from tests.registry.random_adapters import drawn

ENCODERS = {
    name: config for name, config in CASES.items() if name != "parallel-residual"
}  # there the feed-forward module's argument is the residual stream
IDS = torch.tensor([[0, 5, 17, 250, 3, 99, 42, 2], [0, 8, 8, 130, 21, 60, 299, 2]])
ON_BASES = sorted(name for name, family in FAMILIES.items() if family.post_norm)


def states(base, ids=IDS):
    with torch.no_grad():
        return hidden_states(base.model, ids, torch.ones_like(ids))


# --- the layer by hand ----------------------------------------------------------------------------


def post_norm(attend, feed):
    """LN(f(x) + x), twice; `attend` and `feed` give what is added."""

    def forward(layer, x, *args, hand, **kwargs):
        y = hand.norm(0, hand.attention(attend(layer, x, *args, **kwargs)) + x)
        f, structure, residual = feed(layer, y), hand.config.structure, hand.config.input == "residual"
        if structure == "pfeiffer" and residual:  # adapters 1.3: original_ln_before, _after, residual_before_ln
            return hand.norms[1](f + hand.bottleneck("ffn", hand.norms[1](f + y)) + y)
        return hand.block(hand.norm(1, hand.ffn(f, y, y) + y))

    return forward


def bert_attention(layer, x, mask, *_, **kwargs):
    return layer.attention.output.dense(layer.attention.self(x, attention_mask=mask, **kwargs)[0])


def bert_ffn(layer, x):
    return layer.output.dense(layer.intermediate(x))


def distilbert_attention(layer, x, mask, **kwargs):
    return layer.attention(x, attention_mask=mask, **kwargs)[0]


BERT = ("encoder.layer", post_norm(bert_attention, bert_ffn), ("attention.output.LayerNorm", "output.LayerNorm"))
LAYERS = dict.fromkeys(("bert", "roberta", "xlm-roberta"), BERT) | {
    "distilbert": (
        "transformer.layer",
        post_norm(distilbert_attention, lambda layer, x: layer.ffn(x)),
        ("sa_layer_norm", "output_layer_norm"),
    )
}


def by_hand(base, config, tensors):
    """A copy of the base's model whose layers are the ones above."""
    patched = copy.deepcopy(base.model)
    path, forward, norms = LAYERS[base.shape.model_type]
    for i, layer in enumerate(patched.get_submodule(path)):
        hand = Hand(config, tensors, i, [layer.get_submodule(name) for name in norms])
        bound = MethodType(forward, layer)
        layer.forward = lambda *args, bound=bound, hand=hand, **kwargs: bound(*args, hand=hand, **kwargs)
    with torch.no_grad():
        return hidden_states(patched, IDS, torch.ones_like(IDS))


@pytest.mark.parametrize("case", ENCODERS)
def test_hooked_layers_are_the_layers_written_by_hand(base, case):
    config = ENCODERS[case]
    tensors = drawn(config, base.shape)
    with attached(base.model, from_tensors(config, base.shape, tensors)):
        hooked = states(base)
    agree(hooked, by_hand(base, config, tensors))
    assert (hooked - states(base)).abs().max() > 0.1


def test_where_an_adapter_reads_and_adds_makes_a_difference(bases):
    """Every case is another function of the same tensors, so that none can stand for another."""
    base, found = bases("bert"), []
    for case in ("pfeiffer", "pfeiffer-residual", "parallel"):
        config = ENCODERS[case].model_copy(update={"bottleneck": 5, "scale": 1.0})
        with attached(base.model, from_tensors(config, base.shape, drawn(config, base.shape))):
            found.append(states(base))
    assert all((one - other).abs().max() > 0.1 for i, one in enumerate(found) for other in found[:i])


@pytest.mark.parametrize("case", ENCODERS)
def test_gradients_reach_every_adapter_tensor_and_not_the_base(base, case):
    config, model = ENCODERS[case], base.model
    adapter = from_tensors(config, base.shape, drawn(config, base.shape))
    with attached(model, adapter):
        hidden = hidden_states(model, IDS, torch.ones_like(IDS))
    (hidden * torch.linspace(-1, 1, 32)).pow(2).mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_nothing_trained_is_the_base_to_the_bit(base):
    own = states(base)
    for config in ENCODERS.values():
        adapter = create(config, base.shape, seed=1, init="zero_up", base=base.model)
        with attached(base.model, adapter):
            assert torch.equal(states(base), own), config


@pytest.mark.parametrize("case", ENCODERS)
def test_rows_of_a_batch_get_what_they_get_alone(bases, case):
    base, config = bases("bert"), ENCODERS[case]
    adapter = from_tensors(config, base.shape, drawn(config, base.shape))
    rows = [[0, 5, 17, 2], [0, 5, 17, 250, 3, 99, 42, 2], [0, 2]]
    ids, mask = padded(rows, pad_id=1)
    with torch.no_grad(), attached(base.model, adapter):
        together = hidden_states(base.model, ids, mask)
        for row, found in zip(rows, together, strict=True):
            agree(found[: len(row)], states(base, torch.tensor([row]))[0])


@pytest.mark.parametrize("case", ["houlsby", "pfeiffer-residual", "bapna_firat-residual"])
def test_half_precision_bases_keep_their_dtype(bases, case):
    base, config = bases("bert"), ENCODERS[case]
    half = copy.deepcopy(base.model).to(torch.bfloat16)
    with attached(half, from_tensors(config, base.shape, drawn(config, base.shape))), torch.no_grad():
        assert hidden_states(half, IDS, torch.ones_like(IDS)).dtype == torch.bfloat16


# --- what fits ------------------------------------------------------------------------------------


def test_a_parallel_adapter_reads_one_thing_and_the_other_name_is_refused(base):
    with pytest.raises(Incompatible, match=r"argument is the residual stream.*input='module'"):
        expected_tensors(CASES["parallel-residual"], base.shape)


def test_a_lora_adds_its_product(bases):
    base, path = bases("bert"), "encoder.layer.1.attention.self.value"
    config = LoraConfig.of({path: LoraModule(2, 6.0)})
    tensors = drawn(config, base.shape)
    patched = copy.deepcopy(base.model)
    a, b = (tensors[f"base_model.model.{path}.lora_{side}.weight"] for side in "AB")
    with torch.no_grad():
        patched.get_submodule(path).weight += 3.0 * b @ a
        want = hidden_states(patched, IDS, torch.ones_like(IDS))
    with attached(base.model, from_tensors(config, base.shape, tensors)):
        agree(states(base), want)


def test_a_lora_on_modules_of_a_head_model_is_refused_by_their_names(bases):
    config = LoraConfig.of({"bert.encoder.layer.0.attention.self.query": LoraModule(2, 2.0)})
    with pytest.raises(Incompatible, match=r"no linear module bert\.encoder.*named like encoder\.layer\.0"):
        expected_tensors(config, bases("bert").shape)
