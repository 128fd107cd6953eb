"""Linear layers in 8-bit integers: near what they replace, and for each token what it gets alone, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from registry.base_model import LoadedBase, load_base, read_allowlist
from registry.errors import InvalidParameter, Unavailable
from registry.likelihood import hidden_states, lm_logits
from service.engine import Engine, GenerateRequest, SamplingParams, ScoreRequest, linears, trial
from service.engine.bases import held_bytes
from service.engine.linears import prepare_linears
from service.engine.quantised import QuantisedLinear, quantises
from service.engine.reordered import ReorderedLinear
from tests.service.loaded_bases import LoadedBases
from tests.tiny_models import TINY_ENCODERS, VARIANTS, build_tiny

with_instructions = pytest.mark.skipif(not quantises("cpu"), reason="this processor has no VNNI")


def layer(
    inputs: int, outputs: int, *, seed: int, bias: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[QuantisedLinear, Tensor, Tensor | None]:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=draw).to(dtype)
    added = torch.randn(outputs, generator=draw).to(dtype) if bias else None
    return QuantisedLinear(weight, added), weight, added


@with_instructions
@given(
    rows=st.integers(0, 70), inputs=st.integers(2, 80), outputs=st.integers(2, 80), seed=st.integers(0, 99),
    bias=st.booleans(), dtype=st.sampled_from([torch.float32, torch.bfloat16]), strided=st.booleans(),
)  # fmt: skip
def test_it_is_as_near_as_rounding_lets_it_be(
    rows: int, inputs: int, outputs: int, seed: int, bias: bool, dtype: torch.dtype, strided: bool
) -> None:
    found, weight, added = layer(inputs, outputs, seed=seed, bias=bias, dtype=dtype)
    draw = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(inputs, rows, generator=draw).t() if strided else torch.randn(1, rows, inputs, generator=draw)
    x = x.to(dtype)
    out = found(x)
    assert (out.dtype, out.shape) == (dtype, (*x.shape[:-1], outputs))
    # Half a step of each factor, a state's for every weight and a weight's for every state, and the output's own dtype.
    w, states = weight.float(), x.float()
    least, largest = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)
    off = (largest - least) / 510 * w.abs().sum(1)
    off = off + states.abs().sum(-1, keepdim=True) * w.abs().amax(1) / 254
    wanted = F.linear(states, w, None if added is None else added.float())
    own = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert bool(((out.float() - wanted).abs() <= 1.02 * off + own * (1 + wanted.abs())).all())
    assert bool(((found.weight.float() - w).abs() <= w.abs().amax(1, keepdim=True) / 250 + own).all())
    assert (found.in_features, found.out_features) == (inputs, outputs)


@with_instructions
@given(rows=st.integers(2, 40), seed=st.integers(0, 99), largest=st.floats(1e-6, 1e6))
def test_a_token_gets_the_same_bits_whoever_is_beside_it(rows: int, seed: int, largest: float) -> None:
    found, _, _ = layer(24, 17, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 24, generator=draw)
    alone = torch.cat([found(row[None]) for row in x])
    assert torch.equal(found(x), alone)
    x[0] *= largest
    assert torch.equal(found(x)[1:], alone[1:])


@with_instructions
def test_values_that_are_no_numbers_stay_in_their_row_and_zeros_are_zeros() -> None:
    found, _, bias = layer(8, 5, seed=0)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0
    clean = found(x)
    assert bias is not None
    assert torch.equal(clean[0], bias)
    x[1, 3], x[2, 0] = float("nan"), float("-inf")
    out = found(x)
    assert [bool(row.isfinite().all()) for row in out] == [True, False, False, True]
    assert torch.equal(out[[0, 3]], clean[[0, 3]])


@with_instructions
def test_a_gradient_goes_through_it() -> None:
    found, _, _ = layer(3, 4, seed=0, bias=False)
    x = torch.randn(2, 3, requires_grad=True)
    found(x).sum().backward()
    torch.testing.assert_close(x.grad, found.weight.sum(0).expand(2, 3))


@with_instructions
@pytest.mark.parametrize("name", [*VARIANTS, *TINY_ENCODERS])
def test_a_base_model_computes_nearly_what_it_did_in_the_bytes_that_are_counted(name: str, tmp_path: Path) -> None:
    entry = build_tiny(tmp_path, name).model_copy(update={"quantization": "int8"})
    base = load_base(entry)
    plain = computed(base)
    assert prepare_linears(base.model, "int8") == len(base.shape.linears)
    torch.testing.assert_close(computed(base), plain, rtol=0.0, atol=0.1 * float(plain.abs().max()))
    output = getattr(base.model, "get_output_embeddings", lambda: None)()
    layers = [base.model.get_submodule(path) for path in base.shape.linears]
    assert {type(one) for one in layers if one is not output} == {QuantisedLinear}
    assert output is None or isinstance(output, ReorderedLinear)
    held = 0
    for one in layers:
        if isinstance(one, QuantisedLinear):
            held += one.weight.numel() + sum(t.nbytes for t in (one._scales, one._sums, one._zeros))
        else:
            held += one.weight.nbytes
        held += 0 if one.bias is None else one.bias.nbytes
    held += sum(tensor.nbytes for tensor in base.model.parameters())
    assert held_bytes(entry) == held
    assert held_bytes(entry) < held_bytes(entry.model_copy(update={"quantization": None}))


def computed(base: LoadedBase) -> Tensor:
    """Logits, or the states of an encoder."""
    ids = torch.arange(10, 22)[None]
    states = hidden_states(base.model, ids, torch.ones_like(ids))
    return states if base.shape.kind == "encoder" else lm_logits(base.model, states)


@with_instructions
def test_rows_that_generate_together_write_what_each_writes_alone(tmp_path: Path) -> None:
    entry = build_tiny(tmp_path, "llama").model_copy(update={"quantization": "int8"})
    engine = Engine(LoadedBases(load_base(entry)), max_rows=8)
    prompts = [tuple(range(5 + n, 12 + 3 * n)) for n in range(6)]
    params = SamplingParams(max_tokens=16, temperature=0.0, logprobs=0)

    def written(of: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        tickets = [engine.submit(GenerateRequest("tiny", prompt, None, params)) for prompt in of]
        while engine.step():
            pass
        return [ticket.result(0).choices[0].token_ids for ticket in tickets]

    assert written(prompts) == [written([prompt])[0] for prompt in prompts]
    ticket = engine.submit(ScoreRequest("tiny", tuple(prompts)))
    while engine.step():
        pass
    assert all(value > 0 for value in ticket.result(0).nll)


def test_a_processor_without_the_instructions_refuses_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert not quantises("cpu")
    entry = build_tiny(tmp_path, "gpt2").model_copy(update={"quantization": "int8"})
    with pytest.raises(Unavailable, match="'tiny' is to be computed in int8, for which cpu has no instructions"):
        trial.tried(load_base(entry))


def test_it_is_for_processors() -> None:
    assert not quantises("cuda")


def test_a_layer_that_would_compute_something_else_is_not_rounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(linears, "TOLERANCE_IN_INT8", 0.0)
    base = load_base(build_tiny(tmp_path, "gpt2"))
    prepare_linears(base.model, "int8")
    assert not any(isinstance(one, QuantisedLinear) for one in base.model.modules())
    assert "transformer.h.0.attn.c_attn stays as it is" in caplog.text


def test_another_quantization_is_refused_by_the_allowlist(tmp_path: Path) -> None:
    build_tiny(tmp_path / "model", "gpt2")
    (tmp_path / "bases.toml").write_text('[bases.small]\nsource = "model"\nquantization = "int4"\n')
    with pytest.raises(InvalidParameter, match="small: quantization: Input should be 'int8'"):
        read_allowlist(tmp_path / "bases.toml")
