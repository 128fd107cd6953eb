"""Recompressing, as near to the exact mixture as one width allows, and aligning neurons before they are averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.adapters import expected_tensors, sites_of, tensor_problems
from registry.adapters.bottleneck_narrowing import narrow_bottlenecks
from registry.mixing import align, concat, recompress
from registry.spec import (
    AlignMixing,
    AverageMixing,
    ConcatMixing,
    LoraConfig,
    LoraModule,
    Recipe,
    RecipeIngredient,
    RecompressMixing,
)
from tests.registry.random_adapters import (
    BASE,
    SHAPE,
    STRUCTURES,
    bottleneck,
    deltas,
    lora,
    make_ingredient,
    residual,
    tensors_of,
    updates,
    weighted,
)

NARROW = RecompressMixing()


def same_bits(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def well_formed(ingredients, mixing=NARROW):
    """The soup's configuration and tensors, which have to fit each other."""
    assert recompress.check(ingredients, mixing) == []
    config, tensors = recompress.result(ingredients, mixing), recompress.mix(ingredients, mixing)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert tensor_problems(expected_tensors(config, SHAPE), shapes) == []
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    return config, tensors


# --- widths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(STRUCTURES))
def test_a_soup_is_as_wide_as_its_widest_ingredient(kind: str) -> None:
    config, _ = well_formed(weighted([bottleneck(kind, 3), bottleneck(kind, 5, scale=2.0)], [1, 2]))
    assert config.bottleneck == 5
    config, _ = well_formed(weighted([bottleneck(kind, 3)] * 3, [1, 2, 3]), RecompressMixing(width=7))
    assert config.bottleneck == 7


def test_each_module_of_a_lora_has_its_own_rank() -> None:
    ranks = {"transformer.h.0.attn.c_attn": LoraModule(4, 8.0), "transformer.h.1.mlp.c_fc": LoraModule(2, 2.0)}
    ingredients = weighted([LoraConfig.of(ranks), lora(3, 6.0)], [1, 1])
    config, _ = well_formed(ingredients)
    assert {path: module.rank for path, module in config.modules().items()} == {
        "transformer.h.0.attn.c_attn": 4,
        "transformer.h.1.attn.c_attn": 3,
        "transformer.h.1.mlp.c_fc": 2,
    }
    assert set(recompress.result(ingredients, RecompressMixing(width=3)).widths().values()) == {3, 2}


@pytest.mark.parametrize("configs", [[bottleneck("bapna_firat", 3)] * 2, [lora(2), lora(3, rslora=True)]])
def test_where_nothing_is_left_out_it_is_concat_bit_for_bit(configs) -> None:
    ingredients = weighted(configs, [1, 3])
    wide = RecompressMixing(width=64)
    assert recompress.result(ingredients, wide) == concat.result(ingredients, ConcatMixing())
    assert same_bits(recompress.mix(ingredients, wide), concat.mix(ingredients, ConcatMixing()))
    assert residual(ingredients, wide) < 1e-6


@pytest.mark.parametrize("config", [bottleneck("bapna_firat", 6), lora(4, 3.0, rslora=True)])
def test_one_ingredient_is_made_narrower(config) -> None:
    ingredient = make_ingredient(0, config)
    narrow_config, _ = well_formed([ingredient], RecompressMixing(width=2))
    assert narrow_config.width == 2
    assert residual([ingredient], RecompressMixing(width=2)) < 0.95


# --- how near -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(STRUCTURES))
@pytest.mark.parametrize("scale", ["1", "-2"])
def test_neurons_that_others_repeat_cost_nothing(kind: str, scale: str) -> None:
    """Two adapters with the same neurons, one with its bottleneck in another order and other up-projections."""
    config = bottleneck(kind, 4)
    first = tensors_of(config, 0)
    second = dict(first)
    order = torch.tensor([2, 0, 3, 1])
    for name in first:
        if "down." in name:
            second[name] = first[name][order]
        elif name.endswith("up.weight"):
            second[name] = -1.5 * first[name][:, order]
    ingredients = weighted([config] * 2, [1, 2])
    ingredients = [
        make_ingredient(n, config, ingredient.weight, load=lambda n=n: (first, second)[n])
        for n, ingredient in enumerate(ingredients)
    ]
    probes = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    soup_config, tensors = well_formed(ingredients, RecompressMixing(scale=scale))
    exact = updates(
        concat.result(ingredients, ConcatMixing()), concat.mix(ingredients, ConcatMixing(scale=scale)), probes
    )
    for site, update in updates(soup_config, tensors, probes).items():
        assert (update - exact[site]).norm() / exact[site].norm() < 0.01, site  # the ridge alone


NARROW_EXACT = ConcatMixing()


@settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from([1, 2, 5]), st.sampled_from(["1", "-0.5"]))
def test_of_a_lora_it_is_the_nearest_update_of_that_rank(seed: int, rank: int, scale: str) -> None:
    ingredients = [
        make_ingredient(seed, lora(4, 8.0), "0.25"),
        make_ingredient(seed + 1, lora(5, 3.0, rslora=True, leaves=("c_attn", "c_fc")), "0.75"),
    ]
    config, tensors = well_formed(ingredients, RecompressMixing(width=rank, scale=scale))
    soup_deltas = deltas(config, tensors)
    exact_deltas = deltas(concat.result(ingredients, NARROW_EXACT), concat.mix(ingredients, ConcatMixing(scale=scale)))
    for path in config.modules():
        left_vectors, values, right_vectors = torch.linalg.svd(exact_deltas[path], full_matrices=False)
        best = (left_vectors[:, :rank] * values[:rank]) @ right_vectors[:rank]
        assert torch.allclose(soup_deltas[path], best, rtol=0, atol=2e-6 * float(values[0])), path


def test_factors_of_layers_count() -> None:
    config = bottleneck("pfeiffer", 3)
    sites = sorted(sites_of(config, SHAPE))
    layers = [dict.fromkeys(sites, "1"), {sites[0]: "0", sites[1]: "1"}]
    ingredients = [make_ingredient(n, config, "0.5", layers=layers[n]) for n in range(2)]
    _, tensors = well_formed(ingredients)
    only = {name: 0.5 * value if ".up." in name else value for name, value in ingredients[0].load().items()}
    probes = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    soup_updates, expected = updates(config, tensors, probes), updates(config, only, probes)
    assert (soup_updates["layers.0.ffn"] - expected["layers.0.ffn"]).norm() < 0.01 * expected["layers.0.ffn"].norm()
    assert (soup_updates["layers.1.ffn"] - expected["layers.1.ffn"]).norm() > 0.1 * expected["layers.1.ffn"].norm()


@pytest.mark.parametrize("nothing", ["down", "up", "both"])
def test_adapters_of_zeros_are_narrowed_to_zeros(nothing: str) -> None:
    config = bottleneck("bapna_firat", 3)
    silent = {
        name: torch.zeros_like(value) if nothing == "both" or f".{nothing}." in name else value
        for name, value in tensors_of(config, 0).items()
    }
    _, tensors = well_formed([make_ingredient(n, config, "0.5", load=lambda: silent) for n in range(2)])
    probes = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    for site, update in updates(config, tensors, probes).items():
        assert torch.allclose(update, updates(config, silent, probes)[site], atol=1e-6), site


def test_the_seed_is_of_the_probes_and_in_the_recipe() -> None:
    ingredients = weighted([bottleneck("pfeiffer", 6)] * 3, [1, 2, 3])
    assert not same_bits(recompress.mix(ingredients, NARROW), recompress.mix(ingredients, RecompressMixing(seed=1)))
    assert same_bits(recompress.mix(ingredients, NARROW), recompress.mix(ingredients, RecompressMixing(seed=0)))
    ingredient = RecipeIngredient(digest=BASE, weight="1")
    digests = {
        Recipe(base_fingerprint=BASE, ingredients=(ingredient,), mixing=mixing).digest
        for mixing in (NARROW, RecompressMixing(seed=1), RecompressMixing(width=4), ConcatMixing())
    }
    assert len(digests) == 4


def test_sites_that_fit_are_left_as_they_are() -> None:
    config = bottleneck("pfeiffer", 4)
    tensors = tensors_of(config, 0)
    narrowed = narrow_bottlenecks(config, tensors, {"": 4}, 0)
    assert all(np.array_equal(value.numpy(), tensors[name].double().numpy()) for name, value in narrowed.items())


# --- alignment ------------------------------------------------------------------------------------


ALIGN = AlignMixing()
PROBES = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


def disguised(tensors, relu: bool, seed: int = 0):
    """An equivalent adapter with its neurons in another order, and of ReLU's each side scaled against the other."""
    draw = np.random.default_rng(seed)
    permuted = dict(tensors)
    for name in tensors:
        if not name.endswith("up.weight"):
            continue
        site = name.removesuffix("up.weight")
        width = tensors[name].shape[1]
        order = torch.from_numpy(draw.permutation(width))
        grown = torch.from_numpy(draw.uniform(0.2, 5.0, width) if relu else np.ones(width)).float()
        permuted[site + "up.weight"] = (tensors[name] / grown)[:, order]
        permuted[site + "down.weight"] = (tensors[site + "down.weight"] * grown[:, None])[order]
        permuted[site + "down.bias"] = (tensors[site + "down.bias"] * grown)[order]
    return permuted


@pytest.mark.parametrize("kind", sorted(STRUCTURES))
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_adapter_and_itself_in_disguise_are_that_adapter(kind: str, seed: int) -> None:
    config = bottleneck(kind, 6)
    plain = tensors_of(config, seed)
    hidden = disguised(plain, STRUCTURES[kind]["activation"] == "relu", seed)
    ingredients = [
        make_ingredient(0, config, "0.3", load=lambda: plain),
        make_ingredient(1, config, "0.7", load=lambda: hidden),
    ]
    soup_updates = updates(align.result(ingredients, ALIGN), align.mix(ingredients, ALIGN), PROBES)
    for site, update in updates(config, plain, PROBES).items():
        assert torch.allclose(soup_updates[site], update, rtol=0, atol=1e-5 * float(update.abs().max())), site
    assert residual(ingredients, ALIGN) < 1e-6 < 0.2 < residual(ingredients, AverageMixing(assume_same_init=True))


@pytest.mark.parametrize("scale", ["1", "-0.5"])
def test_scales_count(scale: str) -> None:
    configs = [bottleneck("pfeiffer_residual", 4, scale=adapter_scale) for adapter_scale in (1.0, 3.0)]
    same = tensors_of(configs[0], 0)
    ingredients = [make_ingredient(n, config, "0.5", load=lambda: same) for n, config in enumerate(configs)]
    mixing = AlignMixing(scale=scale)
    config = align.result(ingredients, mixing)
    assert config.scale == 1.0
    soup_updates = updates(config, align.mix(ingredients, mixing), PROBES)
    for site, update in updates(configs[0], same, PROBES).items():
        assert torch.allclose(soup_updates[site], float(scale) * 2.0 * update, rtol=1e-4, atol=1e-4), site


def test_one_ingredient_scaled_is_folded() -> None:
    assert residual([make_ingredient(0, bottleneck("bapna_firat", 4))], AlignMixing(scale="2")) < 1e-6


def test_neurons_that_are_nothing_are_no_trouble() -> None:
    config = bottleneck("pfeiffer", 3)
    silent = {name: torch.zeros_like(value) for name, value in tensors_of(config, 0).items()}
    tensors = align.mix(
        [make_ingredient(0, config, "0.5"), make_ingredient(1, config, "0.5", load=lambda: silent)], ALIGN
    )
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
