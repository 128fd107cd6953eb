"""TIES, DARE and slerp: PEFT's and the papers' formulas entry by entry, and what they have in common."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import peft.utils.merge_utils as theirs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from registry.adapters.lora import LORA_A, LORA_B
from registry.adapters.weights import save_tensors
from registry.errors import Incompatible
from registry.mixing import MIXINGS
from registry.mixing.auto import choose_mixing, within_width
from registry.mixing.dare import generator
from registry.mixing.slerp import factors
from registry.spec import (
    AverageMixing,
    DareMixing,
    FisherMixing,
    FusionConfig,
    HeadConfig,
    SlerpMixing,
    TiesMixing,
)
from tests.other_processor import elsewhere
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import INIT, OTHER_INIT, bottleneck, known, lora, part, tensors_of, weighted

ENTRYWISE = [TiesMixing(), DareMixing(), SlerpMixing()]
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
    found = ours(parts, TiesMixing(density=density))
    for name, tensor in found.items():
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


def test_dares_expectation_is_the_average() -> None:
    parts = of_one_start(2)
    average = ours(parts, AverageMixing())
    name = "layers.0.ffn.down.weight"
    drawn = torch.stack([ours(parts, DareMixing(seed=seed))[name] for seed in range(400)])
    error = drawn.std(0) / 20
    assert ((drawn.mean(0) - average[name]).abs() < 5 * error).all()


def test_an_adapter_loses_the_same_entries_whatever_it_is_mixed_with() -> None:
    one, two, three = of_one_start(3)
    quiet = {name: torch.zeros_like(tensor) for name, tensor in two.load().items()}
    silent = [replace(other, weight="0.5", load=lambda: quiet) for other in (two, three)]
    one = replace(one, weight="0.5")
    found = [ours([one, other], DareMixing(seed=1)) for other in silent]
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    assert not torch.equal(found[0]["layers.0.ffn.up.weight"], ours([one, silent[0]], DareMixing())[
        "layers.0.ffn.up.weight"
    ])  # fmt: skip


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
    found = factors(torch.tensor([1.0, 2.0]), torch.tensor(two), 0.25)
    assert [float(one) for one in found] == [0.75, 0.25]


def test_slerp_keeps_the_length_between_equals() -> None:
    one = torch.tensor([1.0, 0.0])
    two = torch.tensor([0.0, 1.0])
    for share in (0.1, 0.5, 0.9):
        first, second = factors(one, two, share)
        assert float((first * one + second * two).norm()) == pytest.approx(1.0, abs=1e-6)


# --- what they have in common ---------------------------------------------------------------------


@pytest.mark.parametrize("mixing", ENTRYWISE, ids=lambda one: one.method)
class TestEntrywise:
    def test_all_but_projections_is_averaged(self, mixing) -> None:
        parts = of_one_start(2, weights=[1, 3])
        found, average = ours(parts, mixing), ours(parts, AverageMixing())
        assert list(found) == list(average)
        for name, tensor in found.items():
            assert torch.equal(tensor, average[name]) != name.endswith(PROJECTION), name

    def test_the_scale_is_of_the_output(self, mixing) -> None:
        parts = of_one_start(2)
        plain, doubled = ours(parts, mixing), ours(parts, mixing.model_copy(update={"scale": "2"}))
        for name, tensor in plain.items():
            assert torch.equal(doubled[name], tensor * 2 if ".up." in name else tensor), name

    def test_one_ingredient_is_itself(self, mixing) -> None:
        (one,) = of_one_start(1)
        assert all(torch.equal(tensor, one.load()[name]) for name, tensor in ours([one], mixing).items())

    def test_copies_of_one_are_that_one_where_nothing_is_left_out(self, mixing) -> None:
        same = tensors_of(bottleneck("bapna_firat", 5), 0)
        parts = [replace(one, load=lambda: same) for one in of_one_start(2, weights=[1, 3])]
        whole = mixing if mixing.method == "slerp" else mixing.model_copy(update={"density": "1"})
        for name, tensor in ours(parts, whole).items():
            assert torch.allclose(tensor, same[name], rtol=1e-6, atol=1e-7), name

    def test_what_cannot_be_mixed_so_is_refused(self, mixing) -> None:
        plain = bottleneck("pfeiffer", 4)
        head = HeadConfig(task="classification", labels=("no", "yes"))
        fusion = FusionConfig(member=plain, members=2)
        config, load = sparse_of(plain)
        for parts, words in (
            ([part(0, plain, provenance=INIT), part(1, plain, provenance=OTHER_INIT)], "initialisations differ"),
            ([part(n, plain) for n in range(2)], "is unknown"),
            ([part(n, config, provenance=INIT, load=load) for n in range(2)], "is pruned, and"),
            ([part(n, head, provenance=INIT) for n in range(2)], "has no projections to mix"),
            ([part(n, fusion, provenance=INIT) for n in range(2)], "is a fusion"),
            ([part(n, plain, provenance=INIT, layers={"layers.0.ffn": "1"}) for n in range(2)], "factors by layer"),
        ):
            with pytest.raises(Incompatible) as refused:
                choose_mixing(parts, mixing, max_width=512)
            assert words in refused.value.message
        vouched = mixing.model_copy(update={"assume_same_init": True})
        assert choose_mixing([part(n, plain) for n in range(2)], vouched, max_width=512).mixing == vouched


def sparse_of(config):
    found, tensors = sparse(config, 0)
    return found, lambda: tensors


def test_slerp_is_of_two_and_a_ranking_is_cut_to_them() -> None:
    parts = of_one_start(3)
    with pytest.raises(Incompatible, match="between two adapters, and these are 3"):
        choose_mixing(parts, SlerpMixing(), max_width=512)
    count, reason = within_width(parts, SlerpMixing(), max_width=512)
    assert count == 2
    assert "these are 3" in reason


@pytest.mark.parametrize("density", [0, -0.1, 1.1, "x", float("nan"), True])
def test_a_density_is_a_share(density) -> None:
    for kind in (TiesMixing, DareMixing):
        with pytest.raises(ValidationError):
            kind(density=density)
    assert TiesMixing(density=0.30).density == "0.3"


# --- the same bytes everywhere --------------------------------------------------------------------

EVERYWHERE = "4a0329fcb2af6306c2facb3dc4276905f04c17789bf9ff7155a33d2f167fa5a8"


def digest_of_some() -> str:
    hashed = hashlib.sha256()
    for mixing in (*ENTRYWISE, FisherMixing(scale="0.7")):
        parts = of_one_start(2, weights=[1, 2])
        if MIXINGS[mixing.method].statistic(mixing):
            parts = [known(one, "fisher") for one in parts]
        hashed.update(save_tensors(ours(parts, mixing)))
    return hashed.hexdigest()


@pytest.mark.slow
def test_the_bytes_are_the_same_on_every_processor_and_as_commit_faf82b18_made_them() -> None:
    other = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "3"}
    assert digest_of_some() == EVERYWHERE
    assert elsewhere(digest_of_some, other) == EVERYWHERE
