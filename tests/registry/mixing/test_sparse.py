"""Averages of pruned adapters: four rules for one mask, as laws, and what the report says of it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.adapters.masks import is_mask, mask_name, mask_problems, pack, projections, unpack, without_masks
from registry.adapters.weights import check_weights, save_tensors
from registry.errors import Incompatible
from registry.mixing import MIXINGS
from registry.mixing.auto import best_unranked, choose_mixing
from registry.mixing.average import mix, result
from registry.mixing.report import ExactMixture
from registry.spec import (
    AutoMixing,
    AverageMixing,
    ConcatMixing,
    HeadConfig,
    Pruned,
    UnionConfig,
    canonical_weights,
)
from tests.registry.pruned_adapters import sparse, sparse_ingredient
from tests.registry.random_adapters import INIT, SHAPE, bottleneck, lora, make_ingredient, reported, tensors_of

CONFIG = bottleneck("pfeiffer")
UNION = UnionConfig(members=(bottleneck("parallel"), HeadConfig(task="classification", labels=("a", "b"))))
RULES = ("union", "intersect", "first", "reprune")
weights = st.lists(st.floats(0.1, 1.0), min_size=2, max_size=4)


def ingredients_of(config, drawn, *, sparsities=(0.4, 0.25, 0.5, 0.1), **changes):
    return [
        sparse_ingredient(number, config, weight, sparsity=sparsities[number], provenance=INIT, **changes)
        for number, weight in enumerate(canonical_weights(drawn))
    ]


def mixed(ingredients, rule=None, **fields):
    mixing = AverageMixing(masks=rule, **fields)
    assert MIXINGS["average"].check(ingredients, mixing) == []
    config, tensors = result(ingredients, mixing), mix(ingredients, mixing)
    assert mask_problems(config, tensors) == []
    return config, tensors


def keeps(config, tensors):
    names = [name for group in projections(config, without_masks(tensors)).values() for name in group]
    return {
        name: unpack(tensors[mask_name(name)], tensors[name].shape)
        if mask_name(name) in tensors
        else torch.ones_like(tensors[name], dtype=torch.bool)
        for name in names
    }


# --- laws -----------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(weights, st.sampled_from(RULES), st.randoms(use_true_random=False))
def test_the_order_of_ingredients_changes_nothing(drawn, rule, random):
    ingredients = ingredients_of(CONFIG, drawn)
    config, tensors = mixed(ingredients, rule)
    shuffled_config, shuffled_tensors = mixed(random.sample(ingredients, len(ingredients)), rule)
    assert config == shuffled_config
    assert save_tensors(tensors) == save_tensors(shuffled_tensors)


@settings(max_examples=10)
@given(weights)
def test_a_union_loses_nothing_of_the_average(drawn):
    ingredients = ingredients_of(CONFIG, drawn)
    _, tensors = mixed(ingredients)
    plain = [
        replace(
            ingredient,
            config=ingredient.config.dense(),
            load=lambda ingredient=ingredient: without_masks(ingredient.load()),
        )
        for ingredient in ingredients
    ]
    _, average = mixed(plain)
    assert save_tensors(without_masks(tensors)) == save_tensors(average)


@settings(max_examples=10)
@pytest.mark.parametrize("config", [CONFIG, UNION], ids=lambda config: config.method)
@given(drawn=weights)
def test_masks_are_what_their_names_say(config, drawn):
    ingredients = ingredients_of(config, drawn)
    ingredient_masks = [keeps(ingredient.config, ingredient.load()) for ingredient in ingredients]
    soup_masks = {rule: keeps(*mixed(ingredients, rule)) for rule in RULES}
    heaviest = max(
        range(len(ingredients)), key=lambda i: (float(ingredients[i].weight), [-ord(c) for c in ingredients[i].digest])
    )
    for name, first in ingredient_masks[heaviest].items():
        stacked = torch.stack([masks[name] for masks in ingredient_masks])
        assert torch.equal(soup_masks["union"][name], stacked.any(0))
        assert torch.equal(soup_masks["intersect"][name], stacked.all(0))
        assert torch.equal(soup_masks["first"][name], first)


@settings(max_examples=10)
@given(weights)
def test_pruning_again_keeps_the_mean_density_and_the_largest(drawn):
    ingredients = ingredients_of(CONFIG, drawn)
    _, average = mixed(ingredients)
    config, tensors = mixed(ingredients, "reprune")
    assert config.pruned.masked == round(
        sum(ingredient.config.pruned.masked for ingredient in ingredients) / len(ingredients)
    )
    assert config.pruned.score == "reprune"
    masks = keeps(config, tensors)
    sizes = torch.cat([average[name].abs().reshape(-1) for name in masks])
    flags = torch.cat([mask.reshape(-1) for mask in masks.values()])
    assert float(sizes[~flags].max()) <= float(sizes[flags].min())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "config",
    [
        bottleneck("houlsby_plain"),
        bottleneck("bapna_firat"),
        lora(rank=3, leaves=("c_attn", "c_fc")),
        UNION,
    ],
    ids=["houlsby", "bapna_firat", "lora", "union"],
)
def test_a_soup_can_be_pushed_as_any_adapter(config, rule):
    config, tensors = mixed(ingredients_of(config, [0.5, 0.3, 0.2]), rule, scale="0.5")
    report = check_weights(save_tensors(tensors), config, SHAPE, max_bytes=10**7)
    masked = sum(pruned.masked for pruned in config.prunings().values())
    assert masked > 0
    assert report.parameters == sum(t.numel() for t in without_masks(tensors).values()) - masked


# --- edges ----------------------------------------------------------------------------------------


def test_a_dense_ingredient_keeps_everything():
    ingredients = [
        sparse_ingredient(0, CONFIG, "0.5", provenance=INIT),
        make_ingredient(1, CONFIG, "0.5", provenance=INIT),
    ]
    pruned = ingredients[0].config.pruned
    soups = {rule: mixed(ingredients, rule) for rule in RULES}
    config, tensors = soups["union"]
    assert config == CONFIG
    assert not any(map(is_mask, tensors))
    assert soups["intersect"][0].pruned.masked == pruned.masked
    assert soups["reprune"][0].pruned.masked == round(pruned.masked / 2)
    assert soups["intersect"][0].pruned.score == "intersect"


def test_layers_are_pruned_again_as_they_were():
    def in_layers(number):
        pruned, tensors = sparse(CONFIG, number)
        pruned_tensors = dict(tensors)
        masked = 0
        for name in projections(CONFIG, without_masks(tensors))[""]:
            keep = torch.ones(tensors[name].numel(), dtype=torch.bool)
            keep[: keep.numel() // (number + 2)] = False
            masked += int((~keep).sum())
            pruned_tensors[name] = tensors_of(CONFIG, number)[name] * keep.reshape(tensors[name].shape)
            pruned_tensors[mask_name(name)] = pack(keep)
        about = Pruned(score="snip", sparsity=masked / 256, masked=masked, scope="layer")
        return make_ingredient(
            number, pruned.model_copy(update={"pruned": about}), "0.5", provenance=INIT, load=lambda: pruned_tensors
        )

    config, tensors = mixed([in_layers(0), in_layers(2)], "reprune")
    assert config.pruned.scope == "layer"
    assert {int((~keep).sum()) for keep in keeps(config, tensors).values()} == {(32 + 16) // 2}


def test_nothing_in_common():
    pruned, tensors = sparse(CONFIG, 5, sparsity=0.5)
    complement = dict(tensors)
    for name in projections(CONFIG, without_masks(tensors))[""]:
        keep = ~unpack(tensors[mask_name(name)], tensors[name].shape)
        complement[name], complement[mask_name(name)] = tensors_of(CONFIG, 6)[name] * keep, pack(keep)
    ingredients = [
        make_ingredient(n, pruned, "0.5", provenance=INIT, load=lambda loaded=loaded: loaded)
        for n, loaded in enumerate([tensors, complement])
    ]
    with pytest.raises(Incompatible, match=r"No entry .* is kept by all 2 ingredients: mix with"):
        result(ingredients, AverageMixing(masks="intersect"))
    config, soup = mixed(ingredients)
    assert config == CONFIG  # between them they keep everything
    assert not any(map(is_mask, soup))


def test_what_is_pruned_may_differ_and_nothing_else():
    ingredients = [
        sparse_ingredient(0, CONFIG, "0.5"),
        sparse_ingredient(1, bottleneck("pfeiffer", 5), "0.5", sparsity=0.6),
    ]
    assert MIXINGS["average"].check(ingredients, AverageMixing(assume_same_init=True)) == [
        "The values of 'bottleneck' differ: acme/a0@1 has 4; acme/a1@1 has 5."
    ]
    assert (
        "initialisation"
        in MIXINGS["average"].check([*ingredients[:1], sparse_ingredient(2, CONFIG)], AverageMixing())[0]
    )


def test_dense_and_pruned_are_of_one_kind():
    alike = [sparse_ingredient(0, CONFIG, provenance=INIT), make_ingredient(1, CONFIG, provenance=INIT)]
    assert best_unranked([make_ingredient(2, bottleneck("parallel"), provenance=INIT), *alike], AutoMixing()) in alike
    assert choose_mixing(alike, AutoMixing(), max_width=64).mixing == AverageMixing()


def test_concatenated_they_are_dense():
    for config in (CONFIG, lora(rank=3)):
        ingredients = ingredients_of(config, [0.5, 0.5])
        mixing = ConcatMixing()
        assert MIXINGS["concat"].check(ingredients, mixing) == []
        joined, tensors = MIXINGS["concat"].result(ingredients, mixing), MIXINGS["concat"].mix(ingredients, mixing)
        assert joined.pruned is None
        check_weights(save_tensors(tensors), joined, SHAPE, max_bytes=10**7)
        exact = ExactMixture(joined, SHAPE, mixing)
        MIXINGS["concat"].mix([exact.watched(ingredient) for ingredient in ingredients], mixing)
        assert exact.mixture.residual(joined, tensors) == pytest.approx(0, abs=1e-6)
        assert MIXINGS["concat"].result([replace(ingredients[0], weight="1")], mixing) == ingredients[0].config


# --- the report -----------------------------------------------------------------------------------


def test_the_report_says_what_is_pruned():
    ingredients = ingredients_of(CONFIG, [0.5, 0.5])
    report, config = reported(ingredients, AverageMixing())[1], result(ingredients, AverageMixing())
    plain = sum(tensor.numel() for tensor in tensors_of(CONFIG, 0).values())
    assert (report.parameters, report.size_bytes) == (plain - config.pruned.masked, 4 * plain + 4 * 64 // 8)
    (note,) = report.notes
    assert note.startswith(f"Pruned are {config.pruned.masked} entries (")
    shares = " ".join(
        f"{ingredient.config.pruned.sparsity:.1%},"
        for ingredient in sorted(ingredients, key=lambda ingredient: ingredient.digest)
    )
    assert note.endswith(f", by masks 'union' of ingredients pruned by {shares.rstrip(',')}.")
    assert reported(ingredients, ConcatMixing())[1].notes[0].endswith("by concat no mask is kept.")
    mixture = [ingredients[0], make_ingredient(1, CONFIG, "0.5", provenance=INIT)]
    assert reported(mixture, AverageMixing())[1].notes[0].endswith("by average an ingredient keeps every entry.")
    plainly = [make_ingredient(n, CONFIG, "0.5", provenance=INIT) for n in range(2)]
    assert reported(plainly, AverageMixing())[1].notes == ()
    assert reported(plainly, AverageMixing(masks="intersect"))[1].notes == (
        "None of the ingredients is pruned: masks 'intersect' changed nothing.",
    )


@pytest.mark.parametrize("rule", RULES)
def test_of_many_masks_no_more_is_held_than_of_one(rule):
    """A bit an entry in a file is a byte an entry once it is read: of a thousand ingredients more than there is."""
    config, count = bottleneck("pfeiffer", width=256), 24
    ingredients = [sparse_ingredient(n, config, str(1 / count), sparsity=0.05, provenance=INIT) for n in range(count)]
    entries = sum(
        ingredients[0].load()[name].numel() for name in projections(config, without_masks(ingredients[0].load()))[""]
    )
    tracemalloc.start()
    try:
        result(ingredients, AverageMixing(masks=rule))
        mix(ingredients, AverageMixing(masks=rule))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    score_bytes = 16 * entries if rule == "reprune" else 0  # the scores of one average, ranked
    assert peak < 6 * entries + score_bytes + 2**16
