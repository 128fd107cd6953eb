"""The names of union members are the unions' own, and are what pydantic puts into locations."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from registry.spec import UNION_MEMBERS, CookRequest


def test_every_member_has_its_name() -> None:
    assert {
        "config": {"bottleneck", "lora"},
        "mixing": {"auto", "average", "concat"},
        "selector": {"gmm", "cosine", "uniform"},
    } == UNION_MEMBERS


@pytest.mark.parametrize(("field", "tag"), [("mixing", "method"), ("selector", "kind")])
def test_a_location_has_the_name_behind_the_field(field: str, tag: str) -> None:
    for name in UNION_MEMBERS[field]:
        with pytest.raises(ValidationError) as caught:
            CookRequest.model_validate({"sample": {"texts": ["a"]}, field: {tag: name, "no_such_field": 1}})
        assert caught.value.errors()[0]["loc"] == (field, name, "no_such_field")
