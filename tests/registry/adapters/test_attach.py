"""Attaching: always removed, nothing of the base changed, other dtypes, misfits refused."""

from __future__ import annotations

import copy

import pytest
import torch

from registry.adapters import attached, create, from_tensors, paper_config
from registry.errors import Incompatible, Internal
from registry.spec import BaseShape, LoraConfig, LoraModule
from tests.registry.adapters.logits import logits

SHAPE = BaseShape(
    fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=32, num_layers=2, context=64, vocab_size=300
)


def adapter_for(structure, model):
    return create(paper_config(structure, bottleneck=4), SHAPE, seed=5, init="linear", base=model)


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_hooks_leave_when_the_forward_pass_raises(model):
    with pytest.raises(IndexError), attached(model, adapter_for("houlsby", model)):
        model(torch.tensor([[100_000]]))
    assert hooks_of(model) == 0


def test_hooks_leave_when_attaching_fails_half_way(model):
    adapter = adapter_for("houlsby", model)

    def edits(model):
        yield model.transformer.h[0].mlp, lambda module, source, hidden: hidden
        raise RuntimeError("half way")

    adapter.edits = edits
    with pytest.raises(RuntimeError, match="half way"), attached(model, adapter):
        raise AssertionError("never attached")
    assert hooks_of(model) == 0


def test_one_adapter_on_two_models_at_once(model, tiny_base_dir):
    model_copy = copy.deepcopy(model)
    adapter = adapter_for("houlsby", model)
    with torch.no_grad(), attached(model, adapter), attached(model_copy, adapter):
        assert torch.equal(logits(model), logits(model_copy))


@pytest.mark.parametrize("structure", ["houlsby", "pfeiffer", "bapna_firat", "parallel"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_bases_keep_their_dtype(model, structure, dtype):
    adapter = adapter_for(structure, model)
    exact = logits(model, adapter)
    model.to(dtype)
    for module in (adapter, copy.deepcopy(adapter).to(dtype)):
        half = logits(model, module)
        assert half.dtype == dtype
        assert (half.float() - exact).abs().max() < 0.06 * exact.abs().max()


def test_small_updates_survive_in_bf16_because_the_adapter_computes_in_fp32(model):
    model.to(torch.bfloat16)
    hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    layer = adapter_for("bapna_firat", model).layers[0].ffn
    exact = layer.double()(hidden.double(), hidden.double())
    layer.float()
    assert torch.equal(layer(hidden, hidden), exact.to(torch.bfloat16))


def test_unknown_family_names_the_known_ones(model):
    adapter = create(paper_config("pfeiffer", bottleneck=4), SHAPE, seed=0)
    model.config.model_type = "no-such"
    with pytest.raises(Incompatible, match=r"'no-such'.*gpt2, gpt_neox, llama"), attached(model, adapter):
        raise AssertionError("never attached")
    with pytest.raises(Incompatible, match="known families"), attached(torch.nn.Linear(1, 1), adapter):
        raise AssertionError("never attached")


@pytest.mark.parametrize("norm", [torch.nn.Identity(), torch.nn.LayerNorm(32, bias=False), torch.nn.RMSNorm(32)])
def test_houlsby_needs_norms_of_the_familys_kind(model, norm):
    adapter = adapter_for("houlsby", model)
    model.transformer.h[1].ln_2 = norm
    with pytest.raises(Incompatible, match="LayerNorms with weight and bias"), attached(model, adapter):
        raise AssertionError("never attached")
    with pytest.raises(Incompatible, match="LayerNorms with weight and bias"):
        adapter_for("houlsby", model)
    logits(model, adapter_for("pfeiffer", model))


def test_a_second_adapter_is_refused_and_the_first_stays(model):
    """Whatever modules the first one edits: LoRA and bottlenecks have none in common."""
    shape = SHAPE.model_copy(update={"linears": {"transformer.h.0.attn.c_attn": (32, 96)}})
    lora = create(LoraConfig.of({"transformer.h.0.attn.c_attn": LoraModule(2, 4.0)}), shape, seed=0)
    pfeiffer, parallel = adapter_for("pfeiffer", model), adapter_for("parallel", model)
    for first, second in ((lora, pfeiffer), (pfeiffer, lora), (pfeiffer, parallel)):
        with torch.no_grad(), attached(model, first):
            expected = logits(model)
            with pytest.raises(Internal, match="already"), attached(model, second):
                raise AssertionError("never attached")
            assert torch.equal(logits(model), expected)
    assert hooks_of(model) == 0


def test_a_parallel_adapter_reads_what_ran_before_it(model):
    """A layer that runs its feed-forward module without its norm has no argument to read, and says so."""
    adapter = create(paper_config("parallel", bottleneck=4).model_copy(update={"input": "residual"}), SHAPE, seed=0)
    with torch.no_grad(), attached(model, adapter), pytest.raises(Internal, match="without the module"):
        model.transformer.h[0].mlp(torch.zeros(1, 1, 32))


def test_from_tensors_copies(model):
    tensors = dict(adapter_for("pfeiffer", model).state_dict())
    adapter = from_tensors(paper_config("pfeiffer", bottleneck=4), SHAPE, tensors)
    with torch.no_grad():
        next(adapter.parameters()).add_(1.0)
    assert all(p.requires_grad and p.dtype == torch.float32 for p in adapter.parameters())
    assert torch.equal(
        tensors["layers.0.ffn.down.weight"], adapter_for("pfeiffer", model).state_dict()["layers.0.ffn.down.weight"]
    )
