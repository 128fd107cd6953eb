"""Schemas that nothing of finite length satisfies are refused, and no other ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidParameter
from service.engine.endless_schema import is_endless
from service.engine.json_schema import checked_schema

ITSELF = {"$ref": "#"}
NAMES = ("a", "b", "c")


def requiring(*parts: Any, **more: Any) -> dict[str, Any]:
    named = dict(zip(NAMES, parts, strict=False))
    return {"type": "object", "properties": named, "required": list(named), **more}


@pytest.mark.parametrize(
    "schema",
    [
        requiring(ITSELF),
        requiring({"type": "string"}, requiring({"type": "array", "items": ITSELF, "minItems": 1})),
        requiring({"anyOf": [ITSELF, requiring(ITSELF)]}),
        requiring({"type": "array", "prefixItems": [{}, ITSELF], "minItems": 2}),
        {"type": ["object", "array"], "required": ["x"], "additionalProperties": ITSELF, "items": ITSELF,
         "minItems": 3},
        {"$ref": "#/$defs/a", "$defs": {"a": requiring({"$ref": "#/$defs/b"}), "b": requiring({"$ref": "#/$defs/a"})}},
        {"$ref": "#"},
        {"type": "array", "items": {"$ref": "#/definitions/a"}, "minItems": 1,
         "definitions": {"a": requiring({"$ref": "#/definitions/a"})}},
    ],
)  # fmt: skip
def test_what_requires_itself_without_end_is_refused_in_a_sentence(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter) as refused:
        checked_schema(schema)
    assert refused.value.message == (
        "The JSON schema cannot be followed: whatever satisfies it would have no end, since it requires itself."
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": ITSELF}},
        requiring({"anyOf": [ITSELF, {"type": "null"}]}),
        requiring({"type": "array", "items": ITSELF}),
        requiring({"type": "array", "prefixItems": [{}, ITSELF], "minItems": 1}),
        {"type": ["object", "null"], "properties": {"a": ITSELF}, "required": ["a"]},
        {"properties": {"a": ITSELF}, "required": ["a"]},  # of any type
        {"type": "object", "required": ["a", 5, ["b"]]},
        {"type": [["object"]], "required": {"a": 1}},
        {"$ref": "#/$defs/gone"},
        {"anyOf": []},
        {"oneOf": []},
        {"type": "array", "prefixItems": [ITSELF, ITSELF], "minItems": -1},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
         "$defs": {"a": requiring({"$ref": "#/$defs/a"})}},
    ],
)  # fmt: skip
def test_what_has_an_end_is_left_alone(schema: dict[str, Any]) -> None:
    assert not is_endless(schema)


REFERENCES = st.sampled_from([{"$ref": "#"}, *({"$ref": f"#/$defs/{name}"} for name in NAMES)])
SCHEMAS = st.recursive(
    st.just({"type": "string"}) | REFERENCES,
    lambda inner: (
        st.builds(lambda parts: requiring(*parts), st.lists(inner, max_size=3))
        | st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda item, fewest: {"type": "array", "items": item, "minItems": fewest}, inner, st.integers(0, 2))
    ),
    max_leaves=8,
)


def ends(schema: dict[str, Any], whole: dict[str, Any], deep: int) -> bool:
    """Whether something satisfies a schema that goes through at most so many references inside of each other."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return deep > 0 and ends(whole if name == "#" else whole["$defs"][name], whole, deep - 1)
    if "anyOf" in schema:
        return any(ends(one, whole, deep) for one in schema["anyOf"])
    if schema["type"] == "array":
        return not schema["minItems"] or ends(schema["items"], whole, deep)
    return all(ends(one, whole, deep) for one in schema.get("properties", {}).values())


@given(SCHEMAS, st.tuples(SCHEMAS, SCHEMAS, SCHEMAS))
def test_it_is_what_unfolding_every_reference_finds(schema: dict[str, Any], named: tuple[dict[str, Any], ...]) -> None:
    """A shortest one goes through no reference twice, of which there are four."""
    whole = {**schema, "$defs": dict(zip(NAMES, named, strict=True))}
    assert is_endless(whole) == (not ends(whole, whole, 4))


def test_a_chain_as_long_as_a_schema_may_be_takes_no_time_to_speak_of() -> None:
    """Each waits for the next, and the last one for nothing: rounds over all of them would be quadratic."""
    most = 1_300
    chain = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(most)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{most}": {"type": "null"}}}
    assert len(json.dumps(schema)) > 60_000
    assert not is_endless(schema)
