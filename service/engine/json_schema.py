"""Validation of JSON schemas before llguidance compiles them: refuses what it would apply wrongly, or too slowly.

llguidance refuses the keywords that it does not implement, and bounds its own work. But it counts duplicate properties
twice (`minProperties`), writes control characters unescaped, and compiles a `multipleOf` of six digits for half a
minute. It also multiplies the alternatives of combined schemas (`allOf`, or anything beside `$ref`, `anyOf` and
`oneOf`). `$id` resolves `$ref` in another document, which is not validated here, and `x-guidance` makes it write other
text than JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from registry.errors import InvalidParameter, TooLarge

PARAM = "response_format"
ANY_OBJECT = '{"type":"object"}'
"""The schema of `json_object`."""
MAX_CHARS = 65_536
"""Characters of the schema as JSON."""
MAX_LEVELS = 1_000
"""Nesting depth of objects and lists, counted through references: llguidance recurses on its stack, and from about
3,000 on the process crashes."""
UNSUPPORTED = (
    "$anchor",
    "$dynamicAnchor",
    "$id",
    "allOf",
    "id",
    "maxProperties",
    "minProperties",
    "multipleOf",
    "x-guidance",
)
EXCLUSIVE = ("$ref", "anyOf", "oneOf")
"""Keywords that only annotations may accompany."""
ANNOTATIONS = frozenset(
    (
        "$comment",
        "$defs",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    )
)
"""Keywords that do not constrain the answer."""
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value maps arbitrary names to schemas."""
VALUE_KEYWORDS = ("const", "default", "enum", "examples")
"""Keywords whose value is data, not a schema."""
REFERENCE = re.compile(r"#|#/(\$defs|definitions)/[^/%]+")
"""A valid `$ref`: the whole schema or a definition, which are validated here; not a path into a value."""
CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")
"""A control character in JSON without a short escape."""


def validate_schema(schema: dict[str, Any]) -> str:
    """Return the schema as JSON, with its properties in their order, which is that of the answer.

    Raises InvalidParameter for unsupported keywords, TooLarge for a schema over a limit.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for subschema in _subschemas(schema):
            _check(subschema)
        levels = _depth(schema)
        for definitions in (schema.get("$defs"), schema.get("definitions")):
            if isinstance(definitions, dict):
                levels += sum(map(_depth, definitions.values()))
    except RecursionError:
        raise schema_error("its schemas stand too deep inside of each other") from None
    if len(text) > MAX_CHARS:
        raise TooLarge(f"The JSON schema has {len(text)} characters; at most {MAX_CHARS} are taken.", param=PARAM)
    if levels > MAX_LEVELS:
        raise TooLarge(
            f"The JSON schema nests {levels} levels; the maximum is {MAX_LEVELS}.",
            param=PARAM,
        )
    if CONTROL.search(text):
        raise schema_error("a control character is not supported")
    return text


def schema_error(problem: str) -> InvalidParameter:
    """The error of a schema that cannot be followed."""
    return InvalidParameter(f"The JSON schema cannot be followed: {problem}.", param=PARAM)


def _check(schema: dict[str, Any]) -> None:
    for keyword in UNSUPPORTED:
        if keyword in schema:
            raise schema_error(f"'{keyword}' is not supported")
    exclusive = next((keyword for keyword in EXCLUSIVE if keyword in schema), None)
    if exclusive is not None:
        for keyword in schema:
            if keyword != exclusive and keyword not in ANNOTATIONS:
                raise schema_error(f"'{keyword[:80]}' beside '{exclusive}' is not supported")
    target = schema.get("$ref", "#")
    if not (isinstance(target, str) and REFERENCE.fullmatch(target)):
        raise schema_error("'$ref' names no schema of this one: it is '#', '#/$defs/NAME' or '#/definitions/NAME'")


def _subschemas(value: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas inside of it."""
    if isinstance(value, list):
        for item in value:
            yield from _subschemas(item)
    elif isinstance(value, dict):
        yield value
        for keyword, operand in value.items():
            if keyword in SCHEMA_MAPS and isinstance(operand, dict):
                yield from _subschemas(list(operand.values()))
            elif keyword not in VALUE_KEYWORDS:
                yield from _subschemas(operand)


def _depth(value: Any) -> int:
    """Nesting depth of objects and lists."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)
