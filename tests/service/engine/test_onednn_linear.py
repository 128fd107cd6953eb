"""Linear layers with reordered weights compute what they replace, in every family, in the bytes that are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from registry.base_model import LoadedBase, load_base
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.spec import BaseEntry
from service.engine import onednn_linear
from service.engine.bases import loaded_weight_bytes
from service.engine.llama import FAMILIES
from service.engine.onednn_linear import LinearPart, ReorderedLinear, can_reorder, prepare_linears
from service.engine.runner_check import checked_runner
from tests.tiny_models import TINY_ENCODERS, VARIANTS

pytestmark = pytest.mark.skipif(not can_reorder(torch.float32, "cpu"), reason="torch was built without oneDNN")


@given(
    rows=st.integers(0, 70),
    inputs=st.integers(2, 80),
    outputs=st.integers(2, 80),
    seed=st.integers(0, 99),
    bias=st.booleans(),
    strided=st.booleans(),
)
def test_it_computes_what_a_linear_layer_computes(
    rows: int, inputs: int, outputs: int, seed: int, bias: bool, strided: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=draw)
    added = torch.randn(outputs, generator=draw) if bias else None
    reordered = ReorderedLinear(weight, added)
    x = torch.randn(inputs, rows, generator=draw).t() if strided else torch.randn(1, rows, inputs, generator=draw)
    torch.testing.assert_close(reordered(x), F.linear(x, weight, added), rtol=1e-5, atol=1e-5)
    assert torch.equal(reordered.weight, weight)
    assert (reordered.in_features, reordered.out_features, "bias=" in repr(reordered)) == (inputs, outputs, True)


def test_a_gradient_goes_through_it() -> None:
    weight, x = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True)
    ReorderedLinear(weight, None)(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(2, 3))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in (*VARIANTS, *TINY_ENCODERS)), ("llama", "bfloat16")]
)
def test_a_base_model_computes_what_it_did(base_entry: Callable[[str], BaseEntry], name: str, dtype: str) -> None:
    if not can_reorder(getattr(torch, dtype), "cpu"):
        pytest.skip("this processor has no such product")
    entry = base_entry(name).model_copy(update={"dtype": dtype})
    base = load_base(entry)
    plain, linears = computed(base), base.shape.linears
    assert prepare_linears(base.model, fuse=base.shape.model_type in FAMILIES) == len(linears)
    assert {type(base.model.get_submodule(path)) for path in linears} <= {ReorderedLinear, LinearPart}
    optimised = computed(base)
    near = {"float32": 1e-5, "bfloat16": 0.05}[dtype]
    torch.testing.assert_close(optimised, plain, rtol=near, atol=near * float(plain.abs().max()))
    layers = [layer for layer in base.model.modules() if isinstance(layer, ReorderedLinear)]
    weight_count = sum(layer.weight.numel() + (0 if layer.bias is None else layer.bias.numel()) for layer in layers)
    weight_count += sum(parameter.numel() for parameter in base.model.parameters())
    assert loaded_weight_bytes(entry) == weight_count * base.model.dtype.itemsize


def computed(base: LoadedBase) -> torch.Tensor:
    """Logits, or the states of an encoder."""
    ids = torch.arange(10, 22)[None]
    states = hidden_states(base.model, ids, torch.ones_like(ids))
    return states if base.shape.kind == "encoder" else lm_logits(base.model, states)


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_only_families_that_compute_fused_layers_once_have_them(
    base_entry: Callable[[str], BaseEntry], family: str
) -> None:
    base = load_base(base_entry(family))
    checked_runner(base)
    is_fused = any(isinstance(module, LinearPart) for module in base.model.modules())
    assert is_fused is (family in FAMILIES)


def test_a_layer_that_would_compute_something_else_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    monkeypatch.setattr(
        onednn_linear, "_product", lambda x, weight, bias, *_: F.linear(x, weight.to_dense(), bias) + 0.01
    )
    assert prepare_linears(model, fuse=False) == 0
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Linear]
    assert "the linear layer 2 stays as it is" in caplog.text


def test_what_cannot_be_reordered_stays() -> None:
    assert not can_reorder(torch.float16, "cpu")
    assert not can_reorder(torch.float32, "cuda")
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.float16), nn.Linear(4, 1))
    assert prepare_linears(model.requires_grad_(False), fuse=False) == 0
