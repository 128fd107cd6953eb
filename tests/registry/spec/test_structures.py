"""Structures as values: what no configuration can say, and the names of union members in pydantic's locations."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from registry.spec import UNION_MEMBERS, AdapterConfig, CookRequest, HeadConfig, MixingRequest, SelectorSpec

CONFIGS: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)
PFEIFFER = {"method": "bottleneck", "structure": "pfeiffer", "bottleneck": 4, "activation": "relu"}
HEAD = {"method": "head", "task": "classification", "labels": ["no", "yes"]}
PREFIX = {"method": "prefix", "length": 3}
LORA = {"method": "lora", "groups": [{"targets": ["h.*.c"], "layers": [0], "rank": 2, "alpha": 2}]}
PRUNED = {"score": "snip", "sparsity": 0.4, "masked": 3}
MAM = {"method": "union", "members": [PREFIX, PFEIFFER]}


@pytest.mark.parametrize(
    ("said", "why"),
    [
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
)
def test_what_no_adapter_is(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        CONFIGS.validate_python(said)


def test_members_of_a_union_have_one_order_however_they_were_written() -> None:
    one, other = (
        CONFIGS.validate_python(MAM | {"members": members})
        for members in ([PREFIX, PFEIFFER, HEAD], [HEAD, PFEIFFER, PREFIX])
    )
    assert one == other
    assert one.identity() == other.identity()


def test_the_order_of_labels_is_theirs() -> None:
    """The first output of a head is its first label."""
    one, other = (
        HeadConfig(task="classification", labels=("a", "b")),
        HeadConfig(task="classification", labels=("b", "a")),
    )
    assert one.identity() != other.identity()


# --- names of members -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "union", "tag", "some"),
    [
        ("config", AdapterConfig, "method", {"bottleneck", "lora"}),
        ("mixing", MixingRequest, "method", {"auto", "average", "concat", "recompress", "align", "ties"}),
        ("selector", SelectorSpec, "kind", {"gmm", "cosine", "uniform"}),
    ],
)
def test_the_names_are_those_that_pydantic_expects(field: str, union: Any, tag: str, some: set[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(union).validate_python({tag: "no such member"})
    (error,) = caught.value.errors()
    assert {name.strip("'") for name in error["ctx"]["expected_tags"].split(", ")} == UNION_MEMBERS[field]
    assert some <= UNION_MEMBERS[field]


@pytest.mark.parametrize(("field", "tag"), [("mixing", "method"), ("selector", "kind")])
def test_a_location_has_the_name_behind_the_field(field: str, tag: str) -> None:
    for name in UNION_MEMBERS[field]:
        with pytest.raises(ValidationError) as caught:
            CookRequest.model_validate({"sample": {"texts": ["a"]}, field: {tag: name, "no_such_field": 1}})
        assert (field, name, "no_such_field") in {error["loc"] for error in caught.value.errors()}
