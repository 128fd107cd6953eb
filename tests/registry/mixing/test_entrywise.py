"""TIES, DARE and slerp: PEFT's and the papers' formulas entry by entry, and what they have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import peft.utils.merge_utils as theirs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from registry.adapters.lora import LORA_A, LORA_B
from registry.mixing import MIXINGS
from registry.mixing.auto import within_width
from registry.mixing.dare import generator
from registry.mixing.slerp import factors
from registry.spec import (
    AverageMixing,
    DareMixing,
    SlerpMixing,
    TiesMixing,
)
from tests.registry.random_adapters import INIT, bottleneck, lora, tensors_of, weighted

PROJECTION = ("down.weight", "up.weight", LORA_A, LORA_B)


def ours(parts, mixing):
    return MIXINGS[mixing.method].mix(parts, mixing)


def of_one_start(count: int, config=bottleneck("bapna_firat", 5), weights=None):
    return weighted([config] * count, weights or [1] * count, provenance=INIT)


def values(parts, name):
    return [tensors_of(one.config, one.adapter_id)[name] for one in sorted(parts, key=lambda one: one.digest)]


@pytest.mark.parametrize("config", [bottleneck("bapna_firat", 5), bottleneck("houlsby", 5), lora(5)])
@pytest.mark.parametrize("density", ["0.2", "0.5", "0.9"])
def test_ties_of_equal_weights_is_pefts(config, density: str) -> None:
    parts = of_one_start(4, config)
    for name, tensor in ours(parts, TiesMixing(density=density)).items():
        if name.endswith(PROJECTION):
            wanted = theirs.ties(values(parts, name), torch.ones(4), float(density))
            assert torch.allclose(tensor, wanted, rtol=1e-6, atol=1e-7), name


def test_ties_weighs_the_election_and_the_mean() -> None:
    parts = of_one_start(3, weights=[1, 2, 5])
    found = ours(parts, TiesMixing(density="0.5"))
    by_digest = sorted(parts, key=lambda one: one.digest)
    weights = np.array([float(one.weight) for one in by_digest])
    name = "layers.1.ffn.up.weight"
    trimmed = np.stack([theirs.magnitude_based_pruning(one, 0.5).numpy() for one in values(parts, name)])
    signs = np.where(np.tensordot(weights, trimmed, 1) >= 0, 1, -1)
    agree = np.sign(trimmed) == signs
    mass = np.tensordot(weights, agree, 1)
    wanted = np.tensordot(weights, trimmed * agree, 1) / np.where(mass == 0, 1, mass)
    assert np.allclose(found[name].numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_dare_is_pefts_with_our_masks(monkeypatch) -> None:
    parts = of_one_start(3, weights=[1, 2, 3])
    by_digest = sorted(parts, key=lambda one: one.digest)
    draws = [generator(one.digest, 7) for one in by_digest]
    found = ours(parts, DareMixing(density="0.3", seed=7))
    weights = torch.tensor([float(one.weight) for one in by_digest])
    for name, tensor in found.items():
        if not name.endswith(PROJECTION):
            continue
        masks = iter([torch.from_numpy(draw.random(tuple(tensor.shape)) < 0.3).float() for draw in draws])
        monkeypatch.setattr(torch, "bernoulli", lambda _, masks=masks: next(masks))
        wanted = theirs.dare_linear(values(parts, name), weights, 0.3)
        monkeypatch.undo()
        assert torch.allclose(tensor, wanted, rtol=1e-5, atol=1e-6), name


def test_an_adapter_loses_the_same_entries_whatever_it_is_mixed_with() -> None:
    one, two, three = of_one_start(3)
    quiet = {name: torch.zeros_like(tensor) for name, tensor in two.load().items()}
    silent = [replace(other, weight="0.5", load=lambda: quiet) for other in (two, three)]
    one = replace(one, weight="0.5")
    found = [ours([one, other], DareMixing(seed=1)) for other in silent]
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    assert not torch.equal(
        found[0]["layers.0.ffn.up.weight"], ours([one, silent[0]], DareMixing())["layers.0.ffn.up.weight"]
    )


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.123456789, 0.5, 0.75, 1.0]), st.floats(-0.95, 0.95))
def test_slerp_is_shoemakes_formula(seed: int, share: float, cosine: float) -> None:
    draw = np.random.default_rng(seed)
    one, across = draw.standard_normal(12), draw.standard_normal(12)
    one /= np.linalg.norm(one)
    across -= across @ one * one
    across /= np.linalg.norm(across)
    two = 3.0 * (cosine * one + np.sqrt(1 - cosine**2) * across)
    found = factors(torch.from_numpy(one), torch.from_numpy(two), share)
    angle = np.arccos(cosine)
    wanted = np.sin((1 - share) * angle) / np.sin(angle), np.sin(share * angle) / np.sin(angle)
    assert np.allclose([float(one) for one in found], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("two", [[2.0, 4.0], [-1.0, -2.0], [0.0, 0.0]])
def test_where_there_is_no_arc_slerp_is_the_average(two) -> None:
    assert [float(one) for one in factors(torch.tensor([1.0, 2.0]), torch.tensor(two), 0.25)] == [0.75, 0.25]


# --- what they have in common ---------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [TiesMixing(), DareMixing(), SlerpMixing()], ids=lambda one: one.method)
def test_all_but_projections_is_averaged(mixing) -> None:
    parts = of_one_start(2, weights=[1, 3])
    found, average = ours(parts, mixing), ours(parts, AverageMixing())
    assert list(found) == list(average)
    for name, tensor in found.items():
        assert torch.equal(tensor, average[name]) != name.endswith(PROJECTION), name


def test_a_ranking_is_cut_to_the_two_that_slerp_takes() -> None:
    count, reason = within_width(of_one_start(3), SlerpMixing(), max_width=512)
    assert count == 2
    assert "these are 3" in reason


@pytest.mark.parametrize("density", [0, -0.1, 1.1, "x", float("nan"), True])
def test_a_density_is_a_share(density) -> None:
    for kind in (TiesMixing, DareMixing):
        with pytest.raises(ValidationError):
            kind(density=density)
    assert TiesMixing(density=0.30).density == "0.3"
