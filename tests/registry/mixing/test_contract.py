"""What every mixing method keeps to: a new entry of `MIXINGS` is put through all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import BaseModel, TypeAdapter, ValidationError

from registry.adapters import expected_tensors, tensor_problems
from registry.adapters.weights import save_tensors
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, BankConfig, Mixing, MixingRequest, MixReport, Recipe, RecipeIngredient
from tests.registry.mixing.test_structures import reported
from tests.registry.random_adapters import BASE, INIT, SHAPE, bottleneck, known, lora, part, started
from tests.repository import REPOSITORY

REQUESTS: TypeAdapter[Any] = TypeAdapter(MixingRequest)


def some_parts(method: str, count: int = 2) -> list[SoupIngredient]:
    """Ingredients that a method takes: bottlenecks of one start, or one bank."""
    if method == "merge":
        bank = BankConfig(expert=bottleneck("bapna_firat", 3), experts=2)
        return [part(0, bank, load=lambda: drawn(bank), provenance=INIT)]
    config, weights = bottleneck("bapna_firat", 4), {1: ["1"], 2: ["0.25", "0.75"]}[count]
    provenance = started(config) if method == "task_arithmetic" else INIT
    parts = [part(n, config, weights[n], provenance=provenance) for n in range(count)]
    kind = MIXINGS[method].statistic(REQUESTS.validate_python({"method": method}))
    return parts if kind is None else [known(one, kind) for one in parts]


def drawn(config: Any) -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(0)
    return {
        name: torch.from_numpy(draw.normal(0, 0.5, size).astype(np.float32))
        for name, size in expected_tensors(config, SHAPE).items()
    }


def broken(parts: Sequence[SoupIngredient]) -> list[SoupIngredient]:
    """The same parts, the first with one value that is no number."""

    def load() -> dict[str, torch.Tensor]:
        found = {name: tensor.clone() for name, tensor in parts[0].load().items()}
        next(iter(found.values())).view(-1)[0] = float("nan")
        return found

    return [replace(parts[0], load=load), *parts[1:]]


@pytest.mark.parametrize("method", sorted(MIXINGS))
class TestEveryMixingMethod:
    def mixing(self, method: str) -> Mixing:
        """As a recipe has it whose request names nothing but the method."""
        asked = REQUESTS.validate_python({"method": method})
        return MIXINGS[method].resolved(some_parts(method), asked, SHAPE)

    def test_it_is_a_member_of_the_union_by_its_own_name(self, method: str) -> None:
        names = {one.model_fields["method"].default for one in get_args(get_args(Mixing)[0])}
        assert names == set(MIXINGS)
        assert self.mixing(method).method == method

    def test_its_fields_are_checked_and_written_back_alike(self, method: str) -> None:
        mixing: BaseModel = self.mixing(method)
        assert REQUESTS.validate_json(mixing.model_dump_json()) == mixing
        with pytest.raises(ValidationError):
            REQUESTS.validate_python({"method": method, "no_such_field": 1})

    def test_what_it_makes_fits_its_configuration(self, method: str) -> None:
        parts, mixing = some_parts(method), self.mixing(method)
        assert MIXINGS[method].check(parts, mixing) == []
        config = MIXINGS[method].result(parts, mixing)
        found = {name: tuple(tensor.shape) for name, tensor in MIXINGS[method].mix(parts, mixing).items()}
        assert tensor_problems(expected_tensors(config, SHAPE), found) == []

    def test_the_same_bytes_again_and_in_any_order(self, method: str) -> None:
        parts, mixing = some_parts(method), self.mixing(method)
        made = [save_tensors(MIXINGS[method].mix(some, mixing)) for some in (parts, parts, parts[::-1])]
        assert len(set(made)) == 1
        assert MIXINGS[method].result(parts, mixing) == MIXINGS[method].result(parts[::-1], mixing)

    def test_every_ingredient_is_read_once_and_none_by_the_check(self, method: str) -> None:
        read: list[int] = []

        def counted(one: SoupIngredient) -> SoupIngredient:
            return replace(one, load=lambda: read.append(one.adapter_id) or one.load())  # type: ignore[func-returns-value]

        parts, mixing = [counted(one) for one in some_parts(method)], self.mixing(method)
        MIXINGS[method].check(parts, mixing)
        MIXINGS[method].result(parts, mixing)
        assert read == []
        MIXINGS[method].mix(parts, mixing)
        assert sorted(read) == [one.adapter_id for one in parts]

    def test_numbers_that_are_none_are_refused(self, method: str) -> None:
        with pytest.raises(InvalidRecipe, match="not finite"):
            MIXINGS[method].mix(broken(some_parts(method)), self.mixing(method))

    def test_nothing_is_mixed_over_two_bases(self, method: str) -> None:
        parts = some_parts(method)
        other = replace(parts[-1], base_fingerprint="sha256:" + "c" * 64, adapter_id=9, ref="acme/other@1")
        reasons = MIXINGS[method].check([*parts, other], self.mixing(method))
        assert reasons
        assert method == "merge" or "The base models differ" in reasons[0]

    def test_its_report_tells_sizes_and_the_residual(self, method: str) -> None:
        parts, mixing = some_parts(method), self.mixing(method)
        tensors, report = reported(parts, mixing)
        assert (report.method, report.members) == (method, len(parts))
        assert report.size_bytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        assert report.residual is not None
        assert (report.residuals is not None) == MIXINGS[method].by_site
        assert MixReport.model_validate(report.model_dump(mode="json")) == report

    def test_the_recipe_has_the_digest_of_its_fields_alone(self, method: str) -> None:
        one = RecipeIngredient(digest=BASE, weight="1")
        recipe = Recipe(base_fingerprint=BASE, ingredients=(one,), mixing=self.mixing(method))
        assert Recipe.model_validate_json(recipe.model_dump_json()).digest == recipe.digest

    def test_it_is_explained(self, method: str) -> None:
        pages = Path(REPOSITORY) / "docs"
        assert re.search(
            rf"^## {method.replace('_', ' ')}\b", (pages / "explanation" / "mixing.md").read_text(), re.I | re.M
        )
        assert method in (pages / "reference" / "glossary.md").read_text()


@pytest.mark.parametrize(
    ("mixing", "digest"),
    [
        ({"method": "average"}, "sha256:77201b32c9271ee110120643cb8aa53579c260fdc122dbc86a473115ba8404a8"),
        (
            {"method": "concat", "scale": "0.5"},
            "sha256:7e66c6f8fe39ff930037d2403c548da6692df279fa41f7a3283392444460e8ce",
        ),
        ({"method": "merge"}, "sha256:67886c76b40fe735b69e17e7a83e8ed148eec2d9cd1c243b4bd815da8e08d585"),
    ],
)
def test_recipes_keep_their_digests(mixing: dict[str, str], digest: str) -> None:
    one = RecipeIngredient(digest=BASE, weight="1")
    recipe = Recipe(base_fingerprint=BASE, ingredients=(one,), mixing=REQUESTS.validate_python(mixing))
    assert recipe.digest == digest


@pytest.mark.parametrize("config", [bottleneck("bapna_firat", 4), lora(rank=2)], ids=["bottleneck", "lora"])
@pytest.mark.parametrize("method", sorted(MIXINGS.keys() - {"merge"}))
def test_only_methods_that_say_so_make_wider_soups(method: str, config: AdapterConfig) -> None:
    mixing = REQUESTS.validate_python({"method": method})
    soup = MIXINGS[method].result([part(n, config, "0.5") for n in range(2)], mixing)
    assert soup.width <= config.width or mixing.widens
