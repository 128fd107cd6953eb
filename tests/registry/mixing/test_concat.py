"""Concatenation: the weighted mean of what its ingredients do, to the last digit of fp32, and weights by layer."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import expected_tensors, sites_of, tensor_problems
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS, concat
from registry.mixing.auto import choose_mixing
from registry.mixing.report import ExactMixture
from registry.spec import (
    AutoMixing,
    AverageMixing,
    ConcatMixing,
    LoraConfig,
    LoraModule,
    Recipe,
    RecipeIngredient,
)
from tests.registry.random_adapters import (
    BASE,
    INIT,
    LINEARS,
    SHAPE,
    STRUCTURES,
    bottleneck,
    deltas,
    lora,
    make_ingredient,
    tensors_of,
    updates,
    weighted,
)

EXACT = ConcatMixing()


def well_formed(ingredients, mixing=EXACT):
    """The soup's configuration and tensors, which have to fit each other."""
    config, tensors = concat.result(ingredients, mixing), concat.mix(ingredients, mixing)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert tensor_problems(expected_tensors(config, SHAPE), shapes) == []
    return config, tensors


# --- bottlenecks ----------------------------------------------------------------------------------

shares = st.lists(st.floats(0.01, 10), min_size=2, max_size=4)
factors = st.none() | st.lists(st.floats(0, 3), min_size=11, max_size=11)
"""Factors by layer, or none."""


def layered(ingredients, drawn):
    """The ingredients with these factors at their sites in turn, if any."""
    if drawn is None:
        return ingredients
    turns = cycle(drawn)
    return [
        replace(ingredient, layers={site: f"{next(turns):.9f}" for site in sorted(sites_of(ingredient.config, SHAPE))})
        for ingredient in ingredients
    ]


def factor_at(ingredient, site):
    return float(ingredient.weight) * (1 if ingredient.layers is None else float(ingredient.layers.get(site, 0)))


@given(
    st.sampled_from(sorted(STRUCTURES)),
    shares,
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    st.sampled_from(["1", "0.5", "-2"]),
    factors,
)
def test_every_layers_output_is_the_weighted_mean_of_its_ingredients(kind, weights, widths, scale, drawn):
    configs = [bottleneck(kind, widths[n], scale=1.0 + n) for n in range(len(weights))]
    ingredients = layered(weighted(configs, weights), drawn)
    config, tensors = well_formed(ingredients, ConcatMixing(scale=scale))
    assert config.bottleneck == sum(widths[: len(weights)])
    probes = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    members = [
        updates(ingredient.config, tensors_of(ingredient.config, ingredient.adapter_id), probes)
        for ingredient in ingredients
    ]
    for site, update in updates(config, tensors, probes).items():
        pairs = zip(ingredients, members, strict=True)
        exact = float(scale) * sum(factor_at(ingredient, site) * member[site].double() for ingredient, member in pairs)
        assert torch.allclose(update.double(), exact, rtol=0, atol=1e-5 * max(1e-9, float(exact.abs().max()))), site


@pytest.mark.parametrize("config", [bottleneck("bapna_firat"), lora()])
def test_a_scaled_ingredient_is_folded(config):
    (ingredient,) = weighted([config], [1])
    soup_config, tensors = well_formed([ingredient], ConcatMixing(scale="2"))
    exact = ExactMixture(soup_config, SHAPE, ConcatMixing(scale="2"))
    exact.watched(ingredient).load()
    assert exact.mixture.residual(soup_config, tensors) < 1e-6
    assert exact.mixture.residual(config, ingredient.load()) == pytest.approx(0.5)


def test_houlsbys_trained_norms_are_kept_where_they_are_equal():
    config = bottleneck("houlsby")
    _, tensors = well_formed(weighted([config] * 2, [1, 1]))
    name = "layers.0.base_norm.1.bias"
    assert torch.equal(tensors[name], tensors_of(config, 0)[name])


# --- LoRA -----------------------------------------------------------------------------------------

some_loras = st.lists(
    st.builds(
        lora,
        st.integers(1, 5),
        st.sampled_from([1.0, 16.0]),
        rslora=st.booleans(),
        leaves=st.lists(st.sampled_from(["c_attn", "c_proj", "c_fc"]), min_size=1, max_size=3, unique=True),
    ),
    min_size=2,
    max_size=4,
)


@given(some_loras, st.lists(st.floats(0.01, 10), min_size=4, max_size=4), st.sampled_from(["1", "-0.5"]), factors)
def test_a_lora_soup_is_the_weighted_sum_of_the_updates(configs, weights, scale, drawn):
    """Ranks, alphas, rsLoRA and modules differ; where an ingredient has no module, it adds nothing."""
    ingredients = layered(weighted(configs, weights[: len(configs)]), drawn)
    config, tensors = well_formed(ingredients, ConcatMixing(scale=scale))
    assert not config.rslora
    assert sum(config.widths().values()) == sum(sum(ingredient.config.widths().values()) for ingredient in ingredients)
    assert all(config.scaling(module) == 1.0 for module in config.modules().values())
    members = [
        deltas(ingredient.config, tensors_of(ingredient.config, ingredient.adapter_id)) for ingredient in ingredients
    ]
    for path, delta in deltas(config, tensors).items():
        exact = float(scale) * sum(
            factor_at(ingredient, path) * d[path] for ingredient, d in zip(ingredients, members, strict=True)
        )
        relative = 1e-6 if drawn is None else 1e-5
        assert torch.allclose(delta, exact, rtol=0, atol=relative * max(1.0, float(exact.abs().max()))), path


def test_the_average_of_factors_has_cross_terms_and_the_residual_says_so():
    config, mixing = lora(4), AverageMixing(assume_same_init=True)
    ingredients = weighted([config] * 2, [1, 1])
    exact = ExactMixture(config, SHAPE, mixing)
    tensors = MIXINGS["average"].mix([exact.watched(ingredient) for ingredient in ingredients], mixing)
    members = [deltas(config, ingredient.load()) for ingredient in ingredients]
    expected = {path: (members[0][path] + members[1][path]) / 2 for path in LINEARS}
    soup_deltas = deltas(config, tensors)
    by_hand = sum((soup_deltas[p] - expected[p]).square().sum() for p in LINEARS) / sum(
        expected[p].square().sum() for p in LINEARS
    )
    assert exact.mixture.residual(config, tensors) == pytest.approx(float(by_hand) ** 0.5, rel=1e-9)
    assert float(by_hand) > 0.1


# --- reasons --------------------------------------------------------------------------------------


def reasons(*ingredients) -> str:
    return " ".join(MIXINGS["concat"].check(ingredients, EXACT))


def test_width_scale_and_initialisation_may_differ():
    assert (
        reasons(make_ingredient(0, bottleneck("parallel")), make_ingredient(1, bottleneck("parallel", 7, scale=1.0)))
        == ""
    )
    assert reasons(make_ingredient(0, lora()), make_ingredient(1, lora(9, 1.0, rslora=True, leaves=("c_fc",)))) == ""


def test_the_epsilon_counts_where_it_is_used():
    for kind, expected in (("bapna_firat", True), ("pfeiffer", False)):
        text = reasons(make_ingredient(0, bottleneck(kind)), make_ingredient(1, bottleneck(kind, layer_norm_eps=1e-6)))
        assert ("'layer_norm_eps' differ" in text) is expected


def test_houlsbys_norms_are_compared_only_where_nothing_else_stands_against_them():
    config = bottleneck("houlsby")
    shifted = {name: t + 1 if ".base_norm." in name else t for name, t in tensors_of(config, 1).items()}
    assert reasons(make_ingredient(0, config), make_ingredient(1, config)) == ""
    text = reasons(
        make_ingredient(0, config), make_ingredient(1, config, load=lambda: shifted), make_ingredient(2, config)
    )
    assert text == "The trained LayerNorms differ: those of acme/a1@1 are not those of acme/a0@1."

    def never():
        raise AssertionError("read before anything else was checked")

    kinds = [config, bottleneck("houlsby_plain", activation="gelu")]
    assert "'trained_norms' differ" in reasons(*(make_ingredient(n, kind, load=never) for n, kind in enumerate(kinds)))
    plain = bottleneck("houlsby_plain")
    assert reasons(make_ingredient(0, plain, load=never), make_ingredient(1, plain, load=never)) == ""


def test_modules_of_more_ranks_than_a_lora_can_have_are_refused():
    halves = [
        LoraConfig.of({f"h.{i}.x": LoraModule(1 + i, 1.0) for i in range(start, start + 4000)}) for start in (0, 4000)
    ]
    with pytest.raises(InvalidRecipe, match="too many for one"):
        MIXINGS["concat"].result([make_ingredient(n, config) for n, config in enumerate(halves)], ConcatMixing())


# --- weights by layer -----------------------------------------------------------------------------


def test_auto_concatenates_what_an_average_does_not_keep():
    ingredients = layered(weighted([bottleneck("pfeiffer")] * 2, [1, 1], provenance=INIT), [0.5])
    assert choose_mixing(ingredients, AutoMixing(), max_width=512).mixing == ConcatMixing()


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
    assert (
        len({Recipe(base_fingerprint=BASE, ingredients=(ingredient,)).digest for ingredient in (plain, with_layers)})
        == 2
    )
