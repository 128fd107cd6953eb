"""The contract of every mixing method: each new entry of `MIXINGS` is tested against all of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from registry.adapters import expected_tensors, tensor_problems
from registry.adapters.weights import save_tensors
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS
from registry.mixing.compat import SoupIngredient
from registry.mixing.report import TOLERANCE
from registry.spec import (
    AdapterConfig,
    AverageMixing,
    BankConfig,
    ConcatMixing,
    DareMixing,
    FisherMixing,
    LoraConfig,
    LoraModule,
    Mixing,
    MixingRequest,
    MixReport,
    Recipe,
    RecipeIngredient,
    SlerpMixing,
    TiesMixing,
)
from tests.fixtures.make_soups import CASES, cooked
from tests.other_processor import elsewhere
from tests.registry.random_adapters import (
    BASE,
    INIT,
    LINEARS,
    SHAPE,
    bottleneck,
    deltas,
    lora,
    make_ingredient,
    reported,
    started,
    tensors_of,
    updates,
    weighted,
    with_statistic,
)
from tests.repository import REPOSITORY

REQUESTS: TypeAdapter[Any] = TypeAdapter(MixingRequest)
PLAIN = bottleneck("bapna_firat", 4)
PROBES = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))


def ingredients_for(method: str, config: AdapterConfig = PLAIN, **changes: Any) -> list[SoupIngredient]:
    """Ingredients that a method takes: bottlenecks of one start, the heaviest of which are alike, or one bank."""
    if method == "merge":
        return [
            make_ingredient(0, BankConfig(expert=bottleneck("bapna_firat", 3), experts=2), provenance=INIT, **changes)
        ]
    weights = ["0.25", "0.75"] if method == "slerp" else ["0.4", "0.2", "0.4"]
    provenance = started(config) if method == "task_arithmetic" else INIT
    ingredients = [
        make_ingredient(n, config, weight, provenance=provenance, **changes) for n, weight in enumerate(weights)
    ]
    kind = MIXINGS[method].statistic_kind(REQUESTS.validate_python({"method": method}))
    return ingredients if kind is None else [with_statistic(ingredient, kind) for ingredient in ingredients]


def mixing_of(method: str, ingredients: Sequence[SoupIngredient] = (), **fields: Any) -> Mixing:
    """The recipe's mixing, of a request that names the method and these fields."""
    request = REQUESTS.validate_python({"method": method, **fields})
    return MIXINGS[method].resolved(ingredients or ingredients_for(method), request, SHAPE)


def broken(ingredients: Sequence[SoupIngredient]) -> list[SoupIngredient]:
    """These ingredients, with one value of the first that is no number."""

    def load() -> dict[str, torch.Tensor]:
        tensors = {name: tensor.clone() for name, tensor in ingredients[0].load().items()}
        next(iter(tensors.values())).view(-1)[0] = float("nan")
        return tensors

    return [replace(ingredients[0], load=load), *ingredients[1:]]


def soup_updates(ingredients: Sequence[SoupIngredient], mixing: Mixing) -> dict[str, torch.Tensor]:
    method = MIXINGS[mixing.method]
    return updates(method.result(ingredients, mixing), method.mix(ingredients, mixing), PROBES)


def test_every_method_is_a_member_of_the_union() -> None:
    assert {model.model_fields["method"].default for model in get_args(get_args(Mixing)[0])} == set(MIXINGS)


@pytest.mark.parametrize("method", sorted(MIXINGS))
class TestEveryMixingMethod:
    def test_what_it_makes_fits_its_configuration(self, method: str) -> None:
        ingredients, mixing = ingredients_for(method), mixing_of(method)
        assert MIXINGS[method].check(ingredients, mixing) == []
        config = MIXINGS[method].result(ingredients, mixing)
        shapes = {name: tuple(tensor.shape) for name, tensor in MIXINGS[method].mix(ingredients, mixing).items()}
        assert tensor_problems(expected_tensors(config, SHAPE), shapes) == []

    def test_the_same_bytes_in_any_order(self, method: str) -> None:
        orders, mixing = [*permutations(ingredients_for(method))], mixing_of(method)
        assert len({save_tensors(MIXINGS[method].mix(ingredients, mixing)) for ingredients in orders}) == 1
        assert len({MIXINGS[method].result(ingredients, mixing) for ingredients in orders}) == 1

    def test_every_ingredient_is_read_once_and_none_by_the_check(self, method: str) -> None:
        read: list[int] = []

        def counted(ingredient: SoupIngredient) -> SoupIngredient:
            return replace(ingredient, load=lambda: read.append(ingredient.adapter_id) or ingredient.load())  # type: ignore[func-returns-value]

        ingredients, mixing = [counted(ingredient) for ingredient in ingredients_for(method)], mixing_of(method)
        MIXINGS[method].check(ingredients, mixing)
        MIXINGS[method].result(ingredients, mixing)
        assert read == []
        MIXINGS[method].mix(ingredients, mixing)
        assert sorted(read) == [ingredient.adapter_id for ingredient in ingredients]

    def test_numbers_that_are_none_are_refused(self, method: str) -> None:
        with pytest.raises(InvalidRecipe, match="not finite"):
            MIXINGS[method].mix(broken(ingredients_for(method)), mixing_of(method))

    def test_nothing_is_mixed_over_two_bases(self, method: str) -> None:
        ingredients = ingredients_for(method)
        base = ingredients[-1].base_fingerprint[:-1] + "x"  # which begins alike
        foreign = replace(ingredients[-1], base_fingerprint=base, adapter_id=9, ref="acme/other@1")
        reasons = MIXINGS[method].check([*ingredients, foreign], mixing_of(method))
        assert reasons
        assert method == "merge" or "The base models differ" in reasons[0]

    def test_its_report_tells_sizes_and_the_residual(self, method: str) -> None:
        ingredients, mixing = ingredients_for(method), mixing_of(method)
        tensors, report = reported(ingredients, mixing)
        assert (report.method, report.members) == (method, len(ingredients))
        assert report.size_bytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        assert report.residual is not None
        assert (report.residuals is not None) == MIXINGS[method].by_site == ("residuals" in report.model_dump())
        assert MixReport.model_validate(report.model_dump(mode="json")) == report

    def test_the_recipe_has_the_digest_of_its_fields_alone(self, method: str) -> None:
        ingredient = RecipeIngredient(digest=BASE, weight="1")
        recipe = Recipe(base_fingerprint=BASE, ingredients=(ingredient,), mixing=mixing_of(method))
        parsed = Recipe.model_validate_json(recipe.model_dump_json())
        assert (parsed, parsed.digest) == (recipe, recipe.digest)

    def test_it_is_explained(self, method: str) -> None:
        pages = Path(REPOSITORY) / "docs"
        assert re.search(
            rf"^## {method.replace('_', ' ')}\b", (pages / "explanation" / "mixing.md").read_text(), re.I | re.M
        )
        assert method in (pages / "reference" / "glossary.md").read_text()


@pytest.mark.parametrize("method", sorted(MIXINGS.keys() - {"merge"}))
class TestThoseOfSeveralAdapters:
    @pytest.mark.parametrize("config", [bottleneck("parallel"), lora(rslora=True)], ids=lambda config: config.method)
    def test_one_ingredient_is_itself_bit_for_bit(self, method: str, config: AdapterConfig) -> None:
        if (method, config.method) in (("align", "lora"), ("task_arithmetic", "bottleneck")):
            return  # which takes no LoRA, and which goes from the start and back
        half = make_ingredient(
            0, config, dtype="BF16", provenance=INIT, load=lambda: tensors_of(config, 0, torch.bfloat16)
        )
        mixing = mixing_of(method, [half])
        assert MIXINGS[method].check([half], mixing) == []
        assert MIXINGS[method].result([half], mixing) == config
        assert save_tensors(MIXINGS[method].mix([half], mixing)) == save_tensors(half.load())

    def test_copies_of_one_are_that_one(self, method: str) -> None:
        same = tensors_of(PLAIN, 0)
        ingredients = ingredients_for(method, load=lambda: same)
        mixing = mixing_of(method)
        if hasattr(mixing, "density"):  # nothing is left out
            mixing = mixing.model_copy(update={"density": "1"})
        error = 0.02 if method == "recompress" else 1e-5  # that of its ridge
        soup = soup_updates(ingredients, mixing)
        for site, update in updates(PLAIN, same, PROBES).items():
            assert (soup[site] - update).norm() < error * update.norm(), site

    def test_the_scale_is_of_the_output(self, method: str) -> None:
        if method in ("task_arithmetic", "recompress"):
            return  # whose scale is of the distance from the start, and which is fitted to what is scaled
        ingredients = ingredients_for(method)
        plain, scaled = (soup_updates(ingredients, mixing_of(method, scale=scale)) for scale in ("1", "-2"))
        for site, update in plain.items():
            torch.testing.assert_close(scaled[site], -2 * update, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("config", [PLAIN, lora(rank=2)], ids=lambda config: config.method)
    def test_only_those_that_say_so_make_wider_soups(self, method: str, config: AdapterConfig) -> None:
        mixing = REQUESTS.validate_python({"method": method})
        soup = MIXINGS[method].result([make_ingredient(n, config, "0.5") for n in range(2)], mixing)
        assert soup.width <= config.width or mixing.widens


@pytest.mark.parametrize(
    ("base", "ingredients", "mixing", "digest"),
    [
        ("b", "b", {"method": "average"}, "77201b32c9271ee110120643cb8aa53579c260fdc122dbc86a473115ba8404a8"),
        (
            *("b", "b", {"method": "concat", "scale": "0.5"}),
            "7e66c6f8fe39ff930037d2403c548da6692df279fa41f7a3283392444460e8ce",
        ),
        ("b", "b", {"method": "merge"}, "67886c76b40fe735b69e17e7a83e8ed148eec2d9cd1c243b4bd815da8e08d585"),
        ("0", "12", {"method": "average"}, "79965408218639eeee3037a13e441675fe20a3194c91759e20371de6b48d77ee"),
        (
            *("0", "12", {"method": "average", "scale": "0.5"}),
            "6d0d14b79227023e6900e059ea6f60b191bc8c58aa34eb28f9e5f70c52fab445",
        ),
        (
            *("0", "12", {"method": "average", "assume_same_init": True}),
            "5a7bc59314e62d7e15f0156002e36deaf0e221ed74008a903370e76e14f3ade5",
        ),
    ],
)
def test_recipes_keep_their_digests(base: str, ingredients: str, mixing: dict[str, Any], digest: str) -> None:
    weight = "1" if len(ingredients) == 1 else "0.5"
    parsed = tuple(RecipeIngredient(digest=f"sha256:{digit * 64}", weight=weight) for digit in ingredients)
    recipe = Recipe(base_fingerprint=f"sha256:{base * 64}", ingredients=parsed, mixing=REQUESTS.validate_python(mixing))
    assert recipe.digest == f"sha256:{digest}"


# --- the same bytes everywhere --------------------------------------------------------------------


def digests_of_some() -> str:
    """One of what commit faf82b18 made too, and one of averages and exact mixtures."""
    wide = LoraConfig.of({path: LoraModule(5, 7.0) for path in LINEARS}, rslora=True)
    two = weighted([bottleneck("bapna_firat", 5)] * 2, [1, 2], provenance=INIT)
    narrow = weighted([bottleneck("bapna_firat", 5), bottleneck("bapna_firat", 3)], [0.3, 0.1])
    groups: list[list[tuple[list[SoupIngredient], Mixing]]] = [
        [
            (two, TiesMixing()),
            (two, DareMixing()),
            (two, SlerpMixing()),
            ([with_statistic(ingredient, "fisher") for ingredient in two], FisherMixing(scale="0.7")),
        ],
        [
            (weighted([PLAIN] * 5, [0.1, 0.7, 1.3, 2.9, 0.05]), AverageMixing()),
            (narrow, ConcatMixing(scale="0.7")),
            (weighted([wide, lora(3, 5.0)], [0.3, 0.1]), ConcatMixing(scale="0.7")),
        ],
    ]
    return " ".join(
        hashlib.sha256(
            b"".join(save_tensors(MIXINGS[mixing.method].mix(ingredients, mixing)) for ingredients, mixing in group)
        ).hexdigest()
        for group in groups
    )


@pytest.mark.slow
def test_the_bytes_are_the_same_on_every_processor_and_as_commit_faf82b18_made_them() -> None:
    """`ATEN_CPU_CAPABILITY=default` runs torch's plain kernels."""
    environment = {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "AVX512F", "OMP_NUM_THREADS": "3"}
    here = digests_of_some()
    assert here.split()[0] == "4a0329fcb2af6306c2facb3dc4276905f04c17789bf9ff7155a33d2f167fa5a8"
    assert elsewhere(digests_of_some, environment) == here


# --- soups of before ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored() -> dict[str, torch.Tensor]:
    return load_file(REPOSITORY / "tests" / "fixtures" / "soups.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_soups_of_before_are_made_again_within_the_tolerance(name: str, stored: dict[str, torch.Tensor]) -> None:
    """A LoRA by its updates, since the signs of its factors were open."""
    config, tensors = cooked(name)
    old_tensors = {key.partition(":")[2]: tensor for key, tensor in stored.items() if key.startswith(f"{name}:")}
    assert tensors.keys() == old_tensors.keys()
    if isinstance(config, LoraConfig):
        tensors, old_tensors = deltas(config, tensors), deltas(config, old_tensors)
    for key, tensor in tensors.items():
        assert (tensor - old_tensors[key]).norm() <= TOLERANCE * old_tensors[key].norm(), key
