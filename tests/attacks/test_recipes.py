"""Recipes that are no mixture, name themselves, name what is another's, or never end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import PASSAGES, UNCOUNTED, Target
from tests.attacks.target_server import attacked

SOUPS = "/v1/soups"
REF = {"ref": "acme/law"}


def recipe(
    name: str,
    tries: str,
    ingredients: Any,
    more: dict[str, Any] | None = None,
    *,
    status: int = 400,
    code: str = "invalid_parameter",
    says: str = "",
    within: dict[str, Any] | None = None,
) -> Attack:
    """A recipe that is refused before there is a job; bytes are the list as it stands in the body."""

    def strike(target: Target) -> Outcome:
        if isinstance(ingredients, bytes):
            return target.post(SOUPS, b'{"recipe":{"ingredients":' + ingredients + b'},"wait":0}')
        return target.post(SOUPS, {"recipe": {"ingredients": ingredients, **(within or {})}, "wait": 0, **(more or {})})

    return Attack(name, tries, status, code, says, strike)


def cooked(
    name: str,
    tries: str,
    ingredients: Any,
    more: dict[str, Any] | None = None,
    *,
    status: int,
    code: str,
    says: str = "",
    key: str | None = None,
) -> Attack:
    """A cook that its job refuses."""

    def strike(target: Target) -> Outcome:
        body = {"recipe": {"ingredients": ingredients}, "verify": False, "wait": 60, **(more or {})}
        return target.post(SOUPS, {key: value for key, value in body.items() if value is not None}, key=key)

    return Attack(name, tries, status, code, says, strike)


@pytest.fixture(scope="module")
def kitchen(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server whose jobs run."""
    with attacked(tiny_base_dir, tmp_path_factory, job_workers=1, max_wait_seconds=60) as target:
        target.world.client.get(f"/v1/jobs/{target.victim['job']}/events")  # ends with it
        yield replace(target, uncounted=UNCOUNTED | {"jobs", "job_askers", "job_turns"})


ASKED = (
    recipe(
        "weight that is NaN",
        "Makes every value of a soup NaN by a weight.",
        b'[{"ref":"acme/law","weight":NaN}]',
        says="holds NaN",
    ),
    recipe(
        "weight that is Infinity",
        "Makes every value infinite by a weight.",
        b'[{"ref":"acme/law","weight":Infinity}]',
        says="holds Infinity",
    ),
    recipe(
        "weight of 1e999",
        "Writes an infinite weight as a number.",
        b'[{"ref":"acme/law","weight":1e999}]',
        says="too large",
    ),
    recipe(
        "negative weight",
        "Subtracts an adapter, so that the sum stays 1.",
        [{**REF, "weight": -1}, REF],
        says="greater than or equal to 0",
    ),
    recipe("weight that is a text", "Has a text read as a number.", [{**REF, "weight": "1; import os"}], says="weight"),
    recipe("no ingredient", "Divides by the sum of no weights.", []),
    recipe(
        "10^6 ingredients",
        "Has a million ingredients looked up.",
        b"[" + b",".join([b'{"ref":"a/b"}'] * 1_000_000) + b"]",
        status=413,
        code="too_large",
    ),
    recipe(
        "1,001 ingredients", "Has more ingredients looked up than a recipe may have.", [REF] * 1001, says="at most 1000"
    ),
    recipe(
        "layers of some",
        "Mixes ingredients with factors of layers and without.",
        [REF, {**REF, "layers": {"layers.0.ffn": 1}}],
        says="either all ingredients",
    ),
    recipe(
        "negative factor of a layer",
        "Subtracts a layer of an adapter.",
        [{**REF, "layers": {"layers.0.ffn": -1}}],
        says="must not be negative",
    ),
    recipe(
        "factor that is no number",
        "Has a text evaluated as a decimal.",
        [{**REF, "layers": {"layers.0.ffn": "1e5000000"}}],
        says="layers",
    ),
    recipe(
        "recipe within a recipe",
        "Nests a recipe, which nothing here follows.",
        [{"recipe": {"ingredients": [REF]}}],
        says="ref",
    ),
    recipe(
        "recipe and sample",
        "Says a recipe and a sample that contradict each other.",
        [REF],
        {"sample": {"texts": PASSAGES}, "selector": {"kind": "uniform"}},
    ),
    recipe("unknown mixing", "Names a method of mixing to be imported.", [REF], {"mixing": {"method": "os.system"}}),
    recipe("seed of 2^64", "Names a seed that overflows.", [REF], {"mixing": {"method": "dare", "seed": 2**64}}),
    recipe(
        "soup in a reserved namespace",
        "Stores a soup where the base models are.",
        [REF],
        {"name": "base/x"},
        code="invalid_name",
        says="reserved",
    ),
    recipe(
        "soup that climbs",
        "Stores a soup above its namespace.",
        [REF],
        {"name": "acme/../x"},
        code="invalid_name",
        says="not valid",
    ),
)

COOKED = (
    cooked(
        "another's adapter",
        "Mixes another namespace's adapter into a soup of its own.",
        [REF],
        status=404,
        code="not_found",
        key="stranger",
    ),
    Attack(
        "another's sample",
        "Cooks with another namespace's sample by its digest.",
        404,
        "not_found",
        "",
        lambda target: target.post(
            SOUPS, {"sample": {"blob": target.victim["sample"]["digest"]}, "wait": 60}, key="stranger"
        ),
    ),
    cooked(
        "soup of itself",
        "Names the soup that is being made as its own ingredient.",
        [{"ref": "acme/loop"}, REF],
        {"name": "acme/loop"},
        status=404,
        code="not_found",
    ),
    cooked(
        "ingredient by a path",
        "Has a file of the server mixed in.",
        [{"ref": "../../etc/passwd"}],
        status=400,
        code="invalid_name",
        says="not valid",
    ),
    cooked(
        "ingredient by a URL",
        "Has the server fetch an ingredient.",
        [{"ref": "https://evil.example/x"}],
        status=400,
        code="invalid_name",
    ),
    cooked(
        "base model as an ingredient",
        "Mixes the base model itself in.",
        [{"ref": "base/tiny"}],
        status=404,
        code="not_found",
        says="is a base model, not an adapter",
    ),
    cooked(
        "weights that are all nothing",
        "Divides by a sum of nothing.",
        [{**REF, "weight": 0}],
        status=400,
        code="invalid_recipe",
    ),
    cooked(
        "layer that there is not",
        "Names a site that no tensor has.",
        [{**REF, "layers": {"../layers.0": 1}}],
        status=400,
        code="invalid_recipe",
    ),
)
ATTACKS = (*ASKED, *COOKED)


@each(ASKED)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)


@pytest.mark.slow
@each(COOKED)
def test_its_job_refuses_it(kitchen: Target, attack: Attack) -> None:
    kitchen.withstands(attack)
