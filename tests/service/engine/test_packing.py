"""Sequences packed into one row compute what each computes alone, on every family and with every kind of attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.base_model import LoadedBase, load_base
from registry.base_model.likelihood import hidden_states
from registry.spec import BaseEntry
from service.engine.packing import IMPLEMENTATION, Chunk, Packing, first_position, packed_states
from service.engine.runner_check import checked_runner
from tests.tiny_models import TINY_CONFIGS, TINY_CONTEXT, TINY_ENCODERS, VARIANTS, build_tiny_base

ON_BASES = (*VARIANTS, *TINY_ENCODERS, "xlm-roberta")
LENGTHS = (7, 20, 20, 20, 3, 1)


@torch.inference_mode()
def test_a_sequence_computes_what_it_computes_alone(base: LoadedBase) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(5, 290, (length,), generator=generator) for length in LENGTHS]
    starts = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
    packing = Packing(
        [Chunk(start, length) for start, length in zip(starts, LENGTHS, strict=True)],
        causal=base.shape.kind == "causal",
    )
    positions = torch.cat([torch.arange(length) for length in LENGTHS]) + first_position(base.model)
    usual = base.model.config._attn_implementation

    packed = packed_states(base.model, torch.cat(rows), positions, packing)

    assert base.model.config._attn_implementation == usual != IMPLEMENTATION
    for row, start in zip(rows, starts, strict=True):
        expected = hidden_states(base.model, row[None], torch.ones_like(row)[None])[0]
        assert float((packed[start : start + len(row)] - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize(
    ("family", "settings", "packed"),
    [
        ("phimoe", {"sliding_window": 16}, False),
        ("phimoe", {"sliding_window": TINY_CONTEXT}, True),
        ("qwen2_moe", {"sliding_window": 16, "use_sliding_window": True, "num_experts": 4}, False),
    ],
)
def test_a_window_in_the_mask_alone_is_not_packed(
    tmp_path: Path, family: str, settings: dict[str, object], packed: bool
) -> None:
    folder = build_tiny_base(tmp_path, model_type=family, **{**TINY_CONFIGS["llama"], **settings})
    assert checked_runner(load_base(BaseEntry(id="tiny", source=str(folder)))).packed is packed
