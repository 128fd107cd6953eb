"""The names of union members are the unions' own, and are what pydantic puts into locations."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from registry.spec import UNION_MEMBERS, AdapterConfig, CookRequest, MixingRequest, SelectorSpec


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
