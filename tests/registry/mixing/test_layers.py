"""Weights by layer: what is added at each site is the sum of the ingredients' updates, each times its factor there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from registry.adapters import sites_of
from registry.mixing import concat
from registry.mixing.auto import choose_mixing
from registry.spec import AutoMixing, ConcatMixing, HandRecipe, Recipe, RecipeIngredient
from tests.registry.random_adapters import (
    BASE,
    INIT,
    SHAPE,
    STRUCTURES,
    bottleneck,
    deltas,
    lora,
    part,
    tensors_of,
    updates,
)

factors = st.lists(st.floats(0, 3), min_size=12, max_size=12)


def layered(number, config, drawn, weight="1"):
    sites = sorted(sites_of(config, SHAPE))
    return part(number, config, weight, layers={site: f"{drawn[at]:.9f}" for at, site in enumerate(sites)})


@settings(max_examples=20)
@given(st.sampled_from(sorted(STRUCTURES)), factors, factors, st.sampled_from(["1", "-2"]))
def test_bottlenecks_are_added_with_the_factor_of_each_place(kind, first, second, scale):
    parts = [layered(0, bottleneck(kind, 3, scale=2.0), first, "0.5"), layered(1, bottleneck(kind, 4), second, "1.5")]
    mixing = ConcatMixing(scale=scale)
    found = updates(concat.result(parts, mixing), concat.mix(parts, mixing), PROBES)
    members = [updates(one.config, tensors_of(one.config, one.adapter_id), PROBES) for one in parts]
    assert found.keys() == {site for one in members for site in one}
    for site, update in found.items():
        exact = sum(
            float(scale) * float(one.weight) * float(one.layers[site]) * member[site].double()
            for one, member in zip(parts, members, strict=True)
        )
        assert torch.allclose(update.double(), exact, rtol=0, atol=1e-5 * max(1e-9, float(exact.abs().max()))), site


@settings(max_examples=20)
@given(factors, factors)
def test_loras_are_added_with_the_factor_of_each_module(first, second):
    parts = [
        layered(0, lora(2, 4.0), first, "0.5"),
        layered(1, lora(3, 1.0, rslora=True, leaves=("c_attn", "c_fc")), second, "2"),
    ]
    members = [deltas(one.config, tensors_of(one.config, one.adapter_id)) for one in parts]
    for path, delta in deltas(concat.result(parts, EXACT), concat.mix(parts, EXACT)).items():
        exact = sum(
            float(one.weight) * float(one.layers.get(path, 0)) * member[path]
            for one, member in zip(parts, members, strict=True)
        )
        assert torch.allclose(delta, exact, rtol=0, atol=1e-5 * max(1e-9, float(exact.abs().max()))), path


EXACT = ConcatMixing()
PROBES = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))


def test_auto_concatenates_what_an_average_does_not_keep():
    parts = [replace(layered(n, bottleneck("pfeiffer"), [0.5] * 12), provenance=INIT) for n in range(2)]
    assert choose_mixing(parts, AutoMixing(), max_width=512).mixing == ConcatMixing()


def test_places_are_named_as_tensors_and_modules_are():
    assert sites_of(bottleneck("houlsby"), SHAPE) == {
        f"layers.{layer}.{site}" for layer in range(2) for site in ("ffn", "attention")
    }
    assert sites_of(lora(), SHAPE) == {f"transformer.h.{layer}.attn.c_attn" for layer in range(2)}


def test_a_recipe_without_layers_has_the_digest_it_always_had():
    plain = RecipeIngredient(digest=BASE, weight="1")
    assert plain.model_dump() == {"digest": BASE, "weight": "1"}
    with_layers = RecipeIngredient(digest=BASE, weight="1", layers={"layers.0.ffn": 0.50})
    assert with_layers.model_dump()["layers"] == {"layers.0.ffn": "0.5"}
    assert len({Recipe(base_fingerprint=BASE, ingredients=(one,)).digest for one in (plain, with_layers)}) == 2


@pytest.mark.parametrize("factor", [-0.5, float("nan"), float("inf"), 1001, "x", True, None])
def test_a_factor_is_a_small_number_that_is_not_negative(factor):
    with pytest.raises(ValidationError, match=r"must|Input"):
        RecipeIngredient(digest=BASE, weight="1", layers={"layers.0.ffn": factor})


def test_all_ingredients_of_a_recipe_by_hand_have_layers_or_none():
    with pytest.raises(ValidationError, match="all ingredients have 'layers' or none"):
        HandRecipe.model_validate({"ingredients": [{"ref": "a/b", "layers": {"layers.0.ffn": 1}}, {"ref": "a/c"}]})
