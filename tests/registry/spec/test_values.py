"""Values: what no configuration, mixing, request or owner can say, and the names of union members in locations."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from registry.spec import (
    UNION_MEMBERS,
    AdapterConfig,
    AverageMixing,
    Card,
    CookRequest,
    DareMixing,
    HandRecipe,
    HeadConfig,
    MixingRequest,
    Owner,
    Pruned,
    RecipeIngredient,
    RecompressMixing,
    SelectorSpec,
    TiesMixing,
)

DIGEST = "sha256:" + "0" * 64
CONFIGS: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)
PFEIFFER = {"method": "bottleneck", "structure": "pfeiffer", "bottleneck": 4, "activation": "relu"}
HEAD = {"method": "head", "task": "classification", "labels": ["no", "yes"]}
PREFIX = {"method": "prefix", "length": 3}
LORA = {"method": "lora", "groups": [{"targets": ["h.*.c"], "layers": [0], "rank": 2, "alpha": 2}]}
PRUNED = {"score": "snip", "sparsity": 0.4, "masked": 3}
MAM = {"method": "union", "members": [PREFIX, PFEIFFER]}


REFUSED: dict[Any, list[tuple[Any, str]]] = {
    AdapterConfig: [
        (HEAD | {"labels": ["no", "yes", "no"]}, "differ from each other"),
        (HEAD | {"labels": ["no"]}, "at least 2 items"),
        (HEAD | {"labels": ["no", ""]}, "at least 1 character"),
        (HEAD | {"labels": ["no", "\x00"]}, "NUL"),
        (HEAD | {"labels": [f"{n:05d}" for n in range(4097)]}, "at most 4096 items"),
        (HEAD | {"labels": [f"{n:0200d}" for n in range(400)]}, "80000 characters in all, and at most 65536"),
        (HEAD | {"task": "question_answering"}, "'start' and 'end'"),
        (HEAD | {"task": "question_answering", "labels": ["end", "start"]}, "'start' and 'end'"),
        (HEAD | {"task": "regression"}, "'classification' or 'question_answering'"),
        (MAM | {"members": [PREFIX]}, "at least 2 items"),
        (MAM | {"members": [PFEIFFER, PFEIFFER]}, "of different methods"),
        (MAM | {"members": [PREFIX, MAM]}, "'union'"),
        (MAM | {"members": [PREFIX, {"method": "fusion", "member": PFEIFFER, "members": 2}]}, "'fusion'"),
        (MAM | {"pruned": PRUNED}, "Extra inputs"),
        (PREFIX | {"pruned": PRUNED}, "Extra inputs"),
        (HEAD | {"pruned": PRUNED}, "Extra inputs"),
        (PREFIX | {"length": 0}, "greater than or equal to 1"),
        (PREFIX | {"length": 4097}, "less than or equal to 4096"),
        ({"method": "fusion", "member": PFEIFFER | {"structure": "houlsby"}, "members": 2}, "two places of a layer"),
        ({"method": "fusion", "member": PFEIFFER | {"pruned": PRUNED}, "members": 2}, "says nothing of pruning"),
        ({"method": "fusion", "member": PFEIFFER, "members": 1}, "greater than or equal to 2"),
        ({"method": "fusion", "member": PFEIFFER, "members": 10**9}, "less than or equal to 64"),
        ({"method": "fusion", "member": LORA, "members": 2}, "bottleneck"),
        ({"method": "adamix", "expert": PFEIFFER, "experts": 10**9}, "less than or equal to 64"),
        ({"method": "adamix", "expert": PFEIFFER | {"pruned": PRUNED}}, "are not pruned"),
        ({"method": "adamix", "expert": PREFIX}, "'prefix'"),
        ({"method": "adamix", "expert": MAM}, "with or without a head"),
        ({"method": "adamix", "expert": {"method": "union", "members": [PFEIFFER, LORA]}}, "with or without a head"),
        ({"method": "adamix", "expert": {"method": "adamix", "expert": PFEIFFER}}, "'adamix'"),
        ({"method": "adamix", "expert": {"method": "union", "members": [PREFIX, HEAD]}}, "experts of a bank"),
        (
            {"method": "adamix", "expert": {"method": "union", "members": [PFEIFFER | {"pruned": PRUNED}, HEAD]}},
            "experts of a bank",
        ),
        ({"method": "adamix", "expert": PFEIFFER, "experts": 1}, "greater than or equal to 2"),
        (PFEIFFER | {"pruned": PRUNED | {"score": "best"}}, "'random'"),
    ],
    Pruned: [  # JSON has whole numbers of thousands of digits, and what is stored is sent to everybody who asks
        (PRUNED | {"seed": 10**4000}, "seed"),
        (PRUNED | {"masked": 10**4000}, "masked"),
        (PRUNED | {"sparsity": 1.0}, "sparsity"),
        (PRUNED | {"masked": 0}, "masked"),
    ],
    AverageMixing: [
        *(({"scale": scale}, "must not be 0") for scale in (0, "0.0", -0.0, 1e-12)),
        *(
            ({"scale": scale}, "scale")
            for scale in ("1e999999999999", "-1e400", 1e308, "sNaN", 10**400, "1e99999999999999999999")
        ),
    ],
    **{
        kind: [({"density": density}, "density") for density in (0, -0.1, 1.1, "x", float("nan"), True)]
        for kind in (TiesMixing, DareMixing)
    },
    RecompressMixing: [
        ({"width": 0}, "width"),
        ({"width": 65537}, "width"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"scale": 0}, "scale"),
    ],
    RecipeIngredient: [
        ({"digest": DIGEST, "weight": "1", "layers": {"layers.0.ffn": factor}}, r"must|Input")
        for factor in (-0.5, float("nan"), float("inf"), 1001, "x", True, None)
    ],
    HandRecipe: [
        (
            {"ingredients": [{"ref": "a/b", "layers": {"layers.0.ffn": 1}}, {"ref": "a/c"}]},
            "all ingredients have 'layers' or none",
        )
    ],
    Card: [({"description": "a\x00b"}, "NUL"), ({"metadata": {"a": "\x00"}}, "NUL")],
    CookRequest: [
        ({"sample": {"texts": ["a"]}, **fields}, reason)
        for fields, reason in (
            ({"effort": "tune", "also": ["acme/law"]}, "are for efforts that weigh adapters"),
            ({"effort": "tune", "control": True}, "are for efforts that weigh adapters"),
            ({"effort": "quick", "verify": False}, "'verify' cannot be false"),
            ({"effort": "tune", "verify": False}, "'verify' cannot be false"),
            ({"effort": "thorough", "mixing": {"method": "average"}}, "finds its own mixing"),
            ({"effort": "quick", "options": {"single": True}}, "weighs several adapters"),
            ({"effort": "instant", "recipe": {"ingredients": [{"ref": "a/b"}]}}, "leaves nothing to search"),
            ({"effort": "tune", "sample": None, "recipe": {"ingredients": [{"ref": "a/b"}]}}, "trains on a sample"),
            ({"effort": "tune", "tuning": {"rate": 0}}, "must be more than 0"),
            ({"effort": "instant", "tuning": {}}, "are for effort 'tune'"),
            ({"effort": "instant", "keep": "law"}, "are for effort 'tune'"),
            ({"budget": {"passes": 3}}, "'budget' is for efforts that compute gradients"),
            ({"effort": "instant", "budget": {"passes": 3}}, "'budget' is for efforts that compute gradients"),
            ({"effort": "quick", "budget": {}}, "give one of"),
            ({"mixing": {"method": "concat", "assume_same_init": True}}, "assume_same_init"),
            ({"mixing": {"method": "blend"}}, "blend"),
            ({"mixing": "concat"}, "mixing"),
            ({"mixing": {"scale": "0"}}, "scale"),
            ({"max_width": 65537}, "max_width"),
            ({"effort": "quick", "budget": {"passes": 1, "seconds": 1}}, "give one of"),
        )
    ],
    Owner: [
        (text, "1 validation error")
        for text in (
            "",
            " legal",
            "legal ",
            "le\ngal",
            "le\x00gal",
            "le\x1bgal",
            "le\u202egal",
            "le\u2066gal",
            "le\u200bgal",
            "le\ufeffgal",
            "le\u2028gal",
            "\u00a0",
            "x" * 201,
            "le\x9b31mgal",
            "\ud800",
            "\u3164",
            "le\u2800gal",
        )
    ],
}


@pytest.mark.parametrize(
    ("kind", "value", "reason"), [(kind, value, reason) for kind, rows in REFUSED.items() for value, reason in rows]
)
def test_what_no_value_is(kind: Any, value: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TypeAdapter(kind).validate_python(value)


def test_members_of_a_union_have_one_order_however_they_were_written() -> None:
    first, second = (
        CONFIGS.validate_python(MAM | {"members": members})
        for members in ([PREFIX, PFEIFFER, HEAD], [HEAD, PFEIFFER, PREFIX])
    )
    assert (first, first.identity()) == (second, second.identity())


def test_the_order_of_labels_is_theirs() -> None:
    """The first output of a head is its first label."""
    first, second = (
        HeadConfig(task="classification", labels=("a", "b")),
        HeadConfig(task="classification", labels=("b", "a")),
    )
    assert first.identity() != second.identity()


# --- names of members -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "union", "tag", "expected_members"),
    [
        ("config", AdapterConfig, "method", {"bottleneck", "lora"}),
        ("mixing", MixingRequest, "method", {"auto", "average", "concat", "recompress", "align", "ties"}),
        ("selector", SelectorSpec, "kind", {"gmm", "cosine", "uniform"}),
    ],
)
def test_the_names_are_those_that_pydantic_expects(
    field: str, union: Any, tag: str, expected_members: set[str]
) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(union).validate_python({tag: "no such member"})
    (error,) = caught.value.errors()
    assert {name.strip("'") for name in error["ctx"]["expected_tags"].split(", ")} == UNION_MEMBERS[field]
    assert expected_members <= UNION_MEMBERS[field]


@pytest.mark.parametrize(("field", "tag"), [("mixing", "method"), ("selector", "kind")])
def test_a_location_has_the_name_behind_the_field(field: str, tag: str) -> None:
    for name in UNION_MEMBERS[field]:
        with pytest.raises(ValidationError) as caught:
            CookRequest.model_validate({"sample": {"texts": ["a"]}, field: {tag: name, "no_such_field": 1}})
        assert (field, name, "no_such_field") in {error["loc"] for error in caught.value.errors()}
