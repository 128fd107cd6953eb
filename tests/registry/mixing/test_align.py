"""Alignment: the order of neurons, and the scale of ReLU's, are no difference between adapters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.mixing import align
from registry.spec import AlignMixing, AverageMixing
from tests.registry.random_adapters import STRUCTURES, bottleneck, part, residual, tensors_of, updates

ALIGN = AlignMixing()
PROBES = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


def disguised(tensors, relu: bool, seed: int = 0):
    """The same adapter with its neurons in another order, and of ReLU's each side scaled against the other."""
    draw = np.random.default_rng(seed)
    found = dict(tensors)
    for name in tensors:
        if not name.endswith("up.weight"):
            continue
        site = name.removesuffix("up.weight")
        width = tensors[name].shape[1]
        order = torch.from_numpy(draw.permutation(width))
        grown = torch.from_numpy(draw.uniform(0.2, 5.0, width) if relu else np.ones(width)).float()
        found[site + "up.weight"] = (tensors[name] / grown)[:, order]
        found[site + "down.weight"] = (tensors[site + "down.weight"] * grown[:, None])[order]
        found[site + "down.bias"] = (tensors[site + "down.bias"] * grown)[order]
    return found


@pytest.mark.parametrize("kind", sorted(STRUCTURES))
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_adapter_and_itself_in_disguise_are_that_adapter(kind: str, seed: int) -> None:
    config = bottleneck(kind, 6)
    plain = tensors_of(config, seed)
    hidden = disguised(plain, STRUCTURES[kind]["activation"] == "relu", seed)
    parts = [part(0, config, "0.3", load=lambda: plain), part(1, config, "0.7", load=lambda: hidden)]
    found = updates(align.result(parts, ALIGN), align.mix(parts, ALIGN), PROBES)
    for site, update in updates(config, plain, PROBES).items():
        assert torch.allclose(found[site], update, rtol=0, atol=1e-5 * float(update.abs().max())), site
    assert residual(parts, ALIGN) < 1e-6 < 0.2 < residual(parts, AverageMixing(assume_same_init=True))


@pytest.mark.parametrize("scale", ["1", "-0.5"])
def test_scales_count(scale: str) -> None:
    configs = [bottleneck("pfeiffer_residual", 4, scale=own) for own in (1.0, 3.0)]
    same = tensors_of(configs[0], 0)
    parts = [part(n, config, "0.5", load=lambda: same) for n, config in enumerate(configs)]
    mixing = AlignMixing(scale=scale)
    config = align.result(parts, mixing)
    assert config.scale == 1.0
    found = updates(config, align.mix(parts, mixing), PROBES)
    for site, update in updates(configs[0], same, PROBES).items():
        assert torch.allclose(found[site], float(scale) * 2.0 * update, rtol=1e-4, atol=1e-4), site


def test_one_ingredient_scaled_is_folded() -> None:
    assert residual([part(0, bottleneck("bapna_firat", 4))], AlignMixing(scale="2")) < 1e-6


def test_neurons_that_are_nothing_are_no_trouble() -> None:
    config = bottleneck("pfeiffer", 3)
    silent = {name: torch.zeros_like(value) for name, value in tensors_of(config, 0).items()}
    tensors = align.mix([part(0, config, "0.5"), part(1, config, "0.5", load=lambda: silent)], ALIGN)
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
