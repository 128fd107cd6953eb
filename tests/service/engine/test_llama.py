"""The forward pass of our own computes what transformers computes, in fewer operations, with fused weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states
from service.engine.llama import FAMILIES, LlamaForward
from service.engine.onednn_linear import prepare_linears
from service.engine.packing import Chunk, Packing, packed_states
from service.engine.runner import ForwardTask, Runner
from tests.tiny_models import VARIANTS

LENGTHS = (7, 20, 20, 3, 1)


@pytest.fixture(params=tuple(name for name, (family, _) in VARIANTS.items() if family in FAMILIES))
def base(request: pytest.FixtureRequest, bases: Callable[[str], LoadedBase]) -> LoadedBase:
    """A copy whose modules tests may replace."""
    original = bases(request.param)
    return replace(original, model=copy.deepcopy(original.model))


@torch.inference_mode()
def test_states_are_those_of_transformers(base: LoadedBase) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(5, 290, (length,), generator=generator) for length in LENGTHS]
    starts = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
    expected = [hidden_states(base.model, row[None], torch.ones_like(row)[None])[0] for row in rows]
    prepare_linears(base.model, fuse=True)
    forward = LlamaForward(base.model, Runner(base).batched)
    packing = Packing([Chunk(start, length) for start, length in zip(starts, LENGTHS, strict=True)])
    states = forward(torch.cat(rows), torch.cat([torch.arange(length) for length in LENGTHS]), packing)
    for row_states, expected_states in zip(states.split(LENGTHS), expected, strict=True):
        assert float((row_states - expected_states).abs().max()) <= 1e-5 * float(expected_states.abs().max())


def test_fused_weights_share_their_memory(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where oneDNN has no layout, as on a GPU: the layers are views of one weight."""
    monkeypatch.setattr("service.engine.onednn_linear.can_reorder", lambda _dtype, _device: False)
    unfused = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    size = sum(parameter.nbytes for parameter in base.model.parameters())
    assert prepare_linears(base.model, fuse=True) == 0
    assert sum(parameter.nbytes for parameter in base.model.parameters()) == size
    attention = base.model.base_model.layers[0].self_attn
    assert attention.q_proj.weight.data_ptr() == attention.k_proj.fused.weight.data_ptr()
    for name in ("q_proj", "k_proj", "v_proj"):
        assert torch.equal(getattr(attention, name).weight, unfused[f"model.layers.0.self_attn.{name}.weight"])


def operations(runner: Runner) -> int:
    """Operations of torch, with those that they call, in a pass over the newest tokens of four sequences."""
    sequences = [object() for _ in range(4)]
    runner.run([ForwardTask([5, 6, 7], 0, sequence=sequence, reserve=8) for sequence in sequences])
    tasks = [ForwardTask([8], 3, sequence=sequence, reserve=8) for sequence in sequences]
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        runner.run(tasks)
    return len(recorded.events())


def test_it_runs_fewer_operations(bases: Callable[[str], LoadedBase]) -> None:
    base = replace(bases("llama"), model=copy.deepcopy(bases("llama").model))
    prepare_linears(base.model, fuse=True)
    specialised, generic = Runner(base), Runner(base)
    generic._forward = lambda *arguments: packed_states(base.model, *arguments)
    assert operations(specialised) < 0.6 * operations(generic)
