"""Formulas of papers, entry by entry: averages, TIES, DARE, slerp, task arithmetic, Fisher and RegMean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import peft.utils.merge_utils as theirs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import create
from registry.adapters.lora import LORA_A, LORA_B
from registry.adapters.moments import measured_weights, packed, unpacked
from registry.errors import Incompatible, InvalidRecipe
from registry.mixing import MIXINGS, average
from registry.mixing.auto import within_width
from registry.mixing.compat import SoupIngredient, Statistic
from registry.mixing.dare import generator
from registry.mixing.slerp import factors
from registry.spec import (
    AverageMixing,
    ConcatMixing,
    DareMixing,
    FisherMixing,
    Provenance,
    RecompressMixing,
    RegMeanMixing,
    SlerpMixing,
    TaskArithmeticMixing,
    TiesMixing,
)
from tests.registry.random_adapters import (
    INIT,
    OTHER_INIT,
    SHAPE,
    UNKNOWN,
    bottleneck,
    deltas,
    lora,
    make_ingredient,
    started,
    tensors_of,
    weighted,
    with_statistic,
)

PLAIN = bottleneck("bapna_firat", 5)
PROJECTION = ("down.weight", "up.weight", LORA_A, LORA_B)


def ours(ingredients, mixing):
    return MIXINGS[mixing.method].mix(ingredients, mixing)


def of_one_start(count: int, config=PLAIN, weights=None):
    return weighted([config] * count, weights or [1] * count, provenance=INIT)


def values(ingredients, name):
    return [
        tensors_of(ingredient.config, ingredient.adapter_id)[name]
        for ingredient in sorted(ingredients, key=lambda ingredient: ingredient.digest)
    ]


@pytest.mark.parametrize("config", [bottleneck("bapna_firat", 5), bottleneck("houlsby", 5), lora(5)])
@pytest.mark.parametrize("density", ["0.2", "0.5", "0.9"])
def test_ties_of_equal_weights_is_pefts(config, density: str) -> None:
    ingredients = of_one_start(4, config)
    for name, tensor in ours(ingredients, TiesMixing(density=density)).items():
        if name.endswith(PROJECTION):
            expected = theirs.ties(values(ingredients, name), torch.ones(4), float(density))
            assert torch.allclose(tensor, expected, rtol=1e-6, atol=1e-7), name


def test_ties_weighs_the_election_and_the_mean() -> None:
    ingredients = of_one_start(3, weights=[1, 2, 5])
    soup = ours(ingredients, TiesMixing(density="0.5"))
    by_digest = sorted(ingredients, key=lambda ingredient: ingredient.digest)
    weights = np.array([float(ingredient.weight) for ingredient in by_digest])
    name = "layers.1.ffn.up.weight"
    trimmed = np.stack([theirs.magnitude_based_pruning(tensor, 0.5).numpy() for tensor in values(ingredients, name)])
    signs = np.where(np.tensordot(weights, trimmed, 1) >= 0, 1, -1)
    agree = np.sign(trimmed) == signs
    mass = np.tensordot(weights, agree, 1)
    expected = np.tensordot(weights, trimmed * agree, 1) / np.where(mass == 0, 1, mass)
    assert np.allclose(soup[name].numpy(), expected, rtol=1e-5, atol=1e-7)


def test_dare_is_pefts_with_our_masks(monkeypatch) -> None:
    ingredients = of_one_start(3, weights=[1, 2, 3])
    by_digest = sorted(ingredients, key=lambda ingredient: ingredient.digest)
    draws = [generator(ingredient.digest, 7) for ingredient in by_digest]
    soup = ours(ingredients, DareMixing(density="0.3", seed=7))
    weights = torch.tensor([float(ingredient.weight) for ingredient in by_digest])
    for name, tensor in soup.items():
        if not name.endswith(PROJECTION):
            continue
        masks = iter([torch.from_numpy(draw.random(tuple(tensor.shape)) < 0.3).float() for draw in draws])
        monkeypatch.setattr(torch, "bernoulli", lambda _, masks=masks: next(masks))
        expected = theirs.dare_linear(values(ingredients, name), weights, 0.3)
        monkeypatch.undo()
        assert torch.allclose(tensor, expected, rtol=1e-5, atol=1e-6), name


def test_an_adapter_loses_the_same_entries_whatever_it_is_mixed_with() -> None:
    first, second, third = of_one_start(3)
    quiet = {name: torch.zeros_like(tensor) for name, tensor in second.load().items()}
    silent = [replace(ingredient, weight="0.5", load=lambda: quiet) for ingredient in (second, third)]
    first = replace(first, weight="0.5")
    soups = [ours([first, partner], DareMixing(seed=1)) for partner in silent]
    assert all(torch.equal(tensor, soups[1][name]) for name, tensor in soups[0].items())
    assert not torch.equal(
        soups[0]["layers.0.ffn.up.weight"], ours([first, silent[0]], DareMixing())["layers.0.ffn.up.weight"]
    )


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.123456789, 0.5, 0.75, 1.0]), st.floats(-0.95, 0.95))
def test_slerp_is_shoemakes_formula(seed: int, share: float, cosine: float) -> None:
    draw = np.random.default_rng(seed)
    first, across = draw.standard_normal(12), draw.standard_normal(12)
    first /= np.linalg.norm(first)
    across -= across @ first * first
    across /= np.linalg.norm(across)
    second = 3.0 * (cosine * first + np.sqrt(1 - cosine**2) * across)
    weights = factors(torch.from_numpy(first), torch.from_numpy(second), share)
    angle = np.arccos(cosine)
    expected = np.sin((1 - share) * angle) / np.sin(angle), np.sin(share * angle) / np.sin(angle)
    assert np.allclose([float(weight) for weight in weights], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("two", [[2.0, 4.0], [-1.0, -2.0], [0.0, 0.0]])
def test_where_there_is_no_arc_slerp_is_the_average(two) -> None:
    assert [float(factor) for factor in factors(torch.tensor([1.0, 2.0]), torch.tensor(two), 0.25)] == [0.75, 0.25]


# --- what they have in common ---------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [TiesMixing(), DareMixing(), SlerpMixing()], ids=lambda mixing: mixing.method)
def test_all_but_projections_is_averaged(mixing) -> None:
    ingredients = of_one_start(2, weights=[1, 3])
    soup, average = ours(ingredients, mixing), ours(ingredients, AverageMixing())
    assert list(soup) == list(average)
    for name, tensor in soup.items():
        assert torch.equal(tensor, average[name]) != name.endswith(PROJECTION), name


def test_a_ranking_is_cut_to_the_two_that_slerp_takes() -> None:
    count, reason = within_width(of_one_start(3), SlerpMixing(), max_width=512)
    assert count == 2
    assert "these are 3" in reason


def test_a_density_is_written_in_one_way() -> None:
    assert TiesMixing(density=0.30).density == "0.3"


# --- the average ----------------------------------------------------------------------------------


@given(st.floats(0.05, 0.95))
def test_the_average_is_linear(share):
    ingredients = weighted([PLAIN] * 2, [share, 1 - share])
    soup, (first, second) = average.mix(ingredients, AverageMixing()), [ingredient.load() for ingredient in ingredients]
    for name, tensor in soup.items():
        exact = share * first[name].double() + (1 - share) * second[name].double()
        assert torch.allclose(tensor.double(), exact, atol=1e-6, rtol=0)


def test_half_precision_ingredients_are_summed_in_fp32_and_cast_once():
    halves = [
        replace(ingredient, dtype="BF16", load=lambda n=n: tensors_of(PLAIN, n, torch.bfloat16))
        for n, ingredient in enumerate(weighted([PLAIN] * 3, [1, 1, 1]))
    ]
    singles = [
        replace(
            ingredient,
            dtype="F32",
            load=lambda ingredient=ingredient: {name: t.float() for name, t in ingredient.load().items()},
        )
        for ingredient in halves
    ]
    exact = average.mix(singles, AverageMixing())
    for name, tensor in average.mix(halves, AverageMixing()).items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, exact[name].to(torch.bfloat16))
    assert average.result_dtype([halves[0], singles[1]]) == "F32"


def test_an_average_that_overflows_is_refused():
    large = {name: torch.full_like(t, 6e4).half() for name, t in tensors_of(PLAIN, 0).items()}
    with pytest.raises(InvalidRecipe, match="leave the range"):
        average.mix([make_ingredient(0, PLAIN, dtype="F16", load=lambda: large)], AverageMixing(scale="2"))


def test_a_start_that_is_declared_is_that_which_was_trained_from_and_one_adapter_needs_none():
    trained = Provenance(init_hash=INIT.init_hash, init_source="trained_here")
    assert (
        average.check(
            [make_ingredient(0, PLAIN, provenance=INIT), make_ingredient(1, PLAIN, provenance=trained)], AverageMixing()
        )
        == []
    )
    assert average.check([make_ingredient(0, PLAIN, provenance=UNKNOWN)], AverageMixing()) == []


# --- task arithmetic ------------------------------------------------------------------------------


ARITHMETIC = MIXINGS["task_arithmetic"]


@pytest.mark.parametrize("config", [PLAIN, bottleneck("pfeiffer", 3), bottleneck("houlsby_plain", 4)])
@pytest.mark.parametrize("coefficients", [(0.4, 0.4, 0.4), (0.9, 0.1, 0.5), (-0.2, -0.3, -0.5)])
def test_task_arithmetic_is_the_papers_formula(config, coefficients) -> None:
    total = sum(coefficients)
    ingredients = weighted(
        [config] * 3, [coefficient / total for coefficient in coefficients], provenance=started(config)
    )
    soup = ARITHMETIC.mix(ingredients, ARITHMETIC.resolved(ingredients, TaskArithmeticMixing(scale=total), SHAPE))
    start = create(config, SHAPE, seed=7, init="linear").state_dict()
    for name, tensor in soup.items():
        first = start[name].double()
        vectors = [tensors_of(config, n)[name].double() - first for n in range(3)]
        expected = first + sum(c * vector for c, vector in zip(coefficients, vectors, strict=True))
        assert torch.allclose(tensor.double(), expected, rtol=1e-6, atol=1e-6), name


def test_the_start_is_found_by_its_hash_and_stands_in_the_recipe() -> None:
    for init in ("near_identity", "linear", "zero_up"):
        ingredients = weighted([PLAIN] * 2, [1, 1], provenance=started(PLAIN, seed=3, init=init))
        mixing = ARITHMETIC.resolved(ingredients, TaskArithmeticMixing(scale="2"), SHAPE)
        assert mixing == TaskArithmeticMixing(scale="2", init=init, init_seed=3)
        assert ARITHMETIC.resolved(ingredients, mixing, SHAPE) == mixing


@pytest.mark.parametrize("recorded", [None, -1, 2**63])
def test_a_seed_can_be_named_where_none_was_recorded_and_is_not_believed(recorded: int | None) -> None:
    """A declared seed that no recipe can hold counts as none."""
    unsaid = started(PLAIN, seed=3).model_copy(update={"init_seed": recorded})
    ingredients = weighted([PLAIN] * 2, [1, 1], provenance=unsaid)
    assert (
        "came without the seed of the start: name 'init_seed'"
        in ARITHMETIC.check(ingredients, TaskArithmeticMixing())[0]
    )
    named = ARITHMETIC.resolved(ingredients, TaskArithmeticMixing(init_seed=3), SHAPE)
    assert (named.init, named.init_seed) == ("linear", 3)
    last = max(ingredients, key=lambda ingredient: ingredient.digest)
    ingredients[ingredients.index(last)] = replace(last, provenance=started(PLAIN, seed=3))
    assert ARITHMETIC.resolved(ingredients, TaskArithmeticMixing(), SHAPE) == named
    for wrong in (TaskArithmeticMixing(init_seed=4), TaskArithmeticMixing(init="zero_up", init_seed=3)):
        assert ARITHMETIC.check(ingredients, wrong) == []
        with pytest.raises(Incompatible, match="gives those with hash"):
            ARITHMETIC.resolved(ingredients, wrong, SHAPE)


@pytest.mark.parametrize("scale", ["1", "2.4", "-0.5"])
def test_task_arithmetic_of_loras_is_the_sum_of_their_updates_exactly(scale: str) -> None:
    ingredients = weighted(
        [lora(2), lora(4, 3.0, rslora=True), lora(3, leaves=("c_fc",))], [1, 2, 3], provenance=OTHER_INIT
    )
    ingredients[1] = replace(ingredients[1], provenance=Provenance())
    mixing = ARITHMETIC.resolved(ingredients, TaskArithmeticMixing(scale=scale, init="linear", init_seed=1), SHAPE)
    assert mixing == TaskArithmeticMixing(scale=scale)
    exact = ConcatMixing(scale=scale)
    assert ARITHMETIC.result(ingredients, mixing) == MIXINGS["concat"].result(ingredients, exact)
    expected = MIXINGS["concat"].mix(ingredients, exact)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ARITHMETIC.mix(ingredients, mixing).items())
    assert "max_width is 5" in ARITHMETIC.too_wide(ingredients, mixing, 5)[0]


# --- by statistics --------------------------------------------------------------------------------


def mixed_by(ingredients: Sequence[SoupIngredient], mixing) -> dict[str, torch.Tensor]:
    return MIXINGS[mixing.method].mix(ingredients, mixing)


def measured(configs, weights, kind: str, **changes) -> list[SoupIngredient]:
    return [with_statistic(ingredient, kind) for ingredient in weighted(configs, weights, **changes)]


def moments_of(values: torch.Tensor, size: int) -> np.ndarray:
    return unpacked(values, size).numpy()


def update(config, tensors, path: str) -> np.ndarray:
    """s B A of a module, float64."""
    return deltas(config, tensors)[path].numpy()


# --- Fisher ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PLAIN, bottleneck("houlsby", 3), lora(3)])
def test_fisher_is_the_papers_formula(config) -> None:
    ingredients = measured([config] * 3, [1, 2, 5], "fisher", provenance=INIT)
    for name, tensor in mixed_by(ingredients, FisherMixing()).items():
        over = sum(float(ingredient.weight) * ingredient.load_statistic()[name].double() for ingredient in ingredients)
        above = sum(
            float(ingredient.weight) * ingredient.load_statistic()[name].double() * ingredient.load()[name].double()
            for ingredient in ingredients
        )
        assert torch.allclose(tensor.double(), above / over, rtol=1e-6, atol=1e-7), name


def test_equal_fishers_are_the_average_and_none_too() -> None:
    ingredients = weighted([PLAIN] * 2, [1, 3], provenance=INIT)
    average = mixed_by(ingredients, AverageMixing())
    for value in (2.5e-9, 0.0):
        same = {name: torch.full_like(tensor, value) for name, tensor in ingredients[0].load().items()}
        alike = [
            replace(ingredient, statistic=Statistic(ingredient.digest, lambda same=same: same))
            for ingredient in ingredients
        ]
        for name, tensor in mixed_by(alike, FisherMixing()).items():
            assert torch.allclose(tensor, average[name], rtol=1e-6, atol=1e-7), name


# --- RegMean --------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", ["0.9", "0.1", "1"])
def test_regmean_is_the_papers_formula(off: str) -> None:
    ingredients = measured([PLAIN] * 3, [1, 2, 5], "inputs", provenance=INIT)
    soup, average = mixed_by(ingredients, RegMeanMixing(off_diagonal=off)), mixed_by(ingredients, AverageMixing())
    fitted = measured_weights(PLAIN, soup)
    assert len(fitted) == 4
    for name, tensor in soup.items():
        if name not in fitted:
            assert torch.equal(tensor, average[name]), name
            continue
        assert not torch.allclose(tensor, average[name], rtol=1e-2), name
        total_gram, total_product = 0.0, 0.0
        for ingredient in ingredients:
            gram = moments_of(ingredient.load_statistic()[name], tensor.shape[1])
            gram = float(off) * gram + (1 - float(off)) * np.diag(np.diag(gram))
            total_gram = total_gram + float(ingredient.weight) * gram
            total_product = total_product + float(ingredient.weight) * gram @ ingredient.load()[name].double().numpy().T
        assert np.allclose(tensor.numpy(), np.linalg.solve(total_gram, total_product).T, rtol=1e-4, atol=1e-4), name


def test_inputs_that_nobody_reads_get_the_average() -> None:
    ingredients = measured([PLAIN] * 2, [1, 3], "inputs", provenance=INIT)
    name = "layers.0.ffn.up.weight"
    average = mixed_by(ingredients, AverageMixing())[name]
    silent = []
    for ingredient in ingredients:
        gram = moments_of(ingredient.load_statistic()[name], 5)
        gram[2], gram[:, 2] = 0, 0
        statistic = {**ingredient.load_statistic(), name: packed(torch.from_numpy(gram))}
        silent.append(
            replace(ingredient, statistic=Statistic(ingredient.digest, lambda statistic=statistic: statistic))
        )
    mixed = mixed_by(silent, RegMeanMixing())[name]
    assert torch.allclose(mixed[:, 2], average[:, 2], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(mixed[:, 1], average[:, 1], rtol=1e-2)
    nothing = {key: torch.zeros_like(value) for key, value in ingredients[0].load_statistic().items()}
    silent = [
        replace(ingredient, statistic=Statistic(ingredient.digest, lambda: nothing)) for ingredient in ingredients
    ]
    assert torch.allclose(mixed_by(silent, RegMeanMixing())[name], average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["1", "0.5"])
def test_regmean_of_loras_is_the_formula_on_their_updates(scale: str) -> None:
    """Whatever they started from, and exact at the sum of their ranks."""
    configs = [lora(2, leaves=("c_attn", "c_proj")), lora(4, 3.0, rslora=True, leaves=("c_attn", "c_proj"))]
    ingredients = measured(configs, [1, 3], "inputs")
    mixing = RegMeanMixing(scale=scale)
    method = MIXINGS["regmean"]
    assert method.check(ingredients, mixing) == []
    config = method.result(ingredients, mixing)
    assert set(config.widths().values()) == {6}
    soup = mixed_by(ingredients, mixing)
    for path in config.modules():
        total_gram, total_product = 0.0, 0.0
        for ingredient in ingredients:
            gram = moments_of(
                ingredient.load_statistic()[f"base_model.model.{path}.lora_A.weight"],
                update(config, soup, path).shape[1],
            )
            gram = 0.9 * gram + 0.1 * np.diag(np.diag(gram))
            total_gram = total_gram + float(ingredient.weight) * gram
            total_product = (
                total_product + float(ingredient.weight) * gram @ update(ingredient.config, ingredient.load(), path).T
            )
        expected = float(scale) * np.linalg.solve(total_gram, total_product).T
        assert np.allclose(update(config, soup, path), expected, rtol=1e-4, atol=1e-3), path
    assert "max_width is 5" in method.too_wide(ingredients, mixing, 5)[0]
    assert method.too_wide(measured([PLAIN] * 2, [1, 1], "inputs"), mixing, 1) == []


# --- recompress by inputs -------------------------------------------------------------------------


def test_a_lora_is_truncated_by_what_its_modules_read() -> None:
    """The best there is of that rank, as numpy's SVD of B A C^1/2 says; the plain truncation is worse there."""
    configs = [lora(3, leaves=("c_attn", "c_proj")), lora(3, 2.0, leaves=("c_attn",))]
    ingredients = measured(configs, [1, 2], "inputs")
    method, plain = MIXINGS["recompress"], RecompressMixing()
    by_inputs = RecompressMixing(by_inputs=True)
    assert method.check(ingredients, by_inputs) == []
    config = method.result(ingredients, by_inputs)
    assert config == method.result(ingredients, plain)
    soup, plain_soup = mixed_by(ingredients, by_inputs), mixed_by(ingredients, plain)
    for path in configs[1].modules():  # where both are
        name = f"base_model.model.{path}.lora_A.weight"
        moments = sum(
            float(ingredient.weight) * moments_of(ingredient.load_statistic()[name], 16) for ingredient in ingredients
        )
        values, vectors = np.linalg.eigh(moments)
        root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
        exact = sum(
            float(ingredient.weight) * update(ingredient.config, ingredient.load(), path) for ingredient in ingredients
        )
        left_vectors, sizes, right_vectors = np.linalg.svd(exact @ root, full_matrices=False)
        best = (left_vectors[:, :3] * sizes[:3]) @ right_vectors[:3] @ np.linalg.inv(root)
        assert np.allclose(update(config, soup, path), best, rtol=1e-4, atol=1e-3), path
        assert not np.allclose(update(config, plain_soup, path), best, rtol=1e-2, atol=1e-2), path


def test_by_inputs_nothing_changes_where_nothing_is_left_out() -> None:
    ingredients = measured([lora(2)] * 2, [1, 1], "inputs")
    wide, exact = (
        mixed_by(ingredients, RecompressMixing(by_inputs=True, width=4)),
        mixed_by(ingredients, ConcatMixing()),
    )
    assert all(torch.equal(tensor, exact[name]) for name, tensor in wide.items())
