"""What of JSON Schema is refused before llguidance compiles it: what it would follow wrongly, or at a price.

llguidance refuses the keywords that it does not implement, and bounds its own work. But it counts properties that come
twice (`minProperties`), writes control characters as they are, compiles a `multipleOf` of six digits for half a minute,
and multiplies the alternatives that two schemas have in common (`allOf`, or anything beside `$ref`, `anyOf` and
`oneOf`). `$id` gives `$ref` another document, whose definitions are not looked at here, and `x-guidance` has it write
something that is no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from registry.errors import InvalidParameter, TooLarge

PARAM = "response_format"
MAX_CHARS = 65_536
"""Of the schema as JSON."""
MAX_LEVELS = 1_000
"""Objects and lists inside of each other, through references too: llguidance follows them on its stack, and from some
3,000 on the process ends."""
REFUSED = (
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
ALONE = ("$ref", "anyOf", "oneOf")
NOTES = frozenset(
    ("$comment", "$schema", "$defs", "definitions", "default", "deprecated", "description", "discriminator", "examples",
     "readOnly", "title", "writeOnly")
)  # fmt: skip
"""What says nothing of the answer."""
NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value has schemas by names that people chose."""
VALUES = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema."""
REFERENCE = re.compile(r"#|#/(\$defs|definitions)/[^/%]+")
"""What `$ref` may name: the whole, or what stands where schemas are looked at; not one inside of a value."""
CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")
"""A control character in JSON that has no short escape."""


def validate_schema(schema: dict[str, Any]) -> str:
    """The schema as JSON, its properties in their order, which is that of the answer.

    Raises InvalidParameter for what is not supported, TooLarge for what is too large.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for one in _schemas(schema):
            _check(one)
        definitions = [schema.get(word) for word in ("$defs", "definitions")]
        levels = _levels(schema)
        levels += sum(_levels(one) for named in definitions if isinstance(named, dict) for one in named.values())
    except RecursionError:
        raise schema_error("its schemas stand too deep inside of each other") from None
    if len(text) > MAX_CHARS:
        raise TooLarge(f"The JSON schema has {len(text)} characters; at most {MAX_CHARS} are taken.", param=PARAM)
    if levels > MAX_LEVELS:
        raise TooLarge(
            f"In the JSON schema {levels} levels may stand inside of each other; at most {MAX_LEVELS} are taken.",
            param=PARAM,
        )
    if CONTROL.search(text):
        raise schema_error("a control character is not supported")
    return text


def schema_error(problem: str) -> InvalidParameter:
    """The error of a schema that cannot be followed, for what `problem` says."""
    return InvalidParameter(f"The JSON schema cannot be followed: {problem}.", param=PARAM)


def _check(schema: dict[str, Any]) -> None:
    for word in REFUSED:
        if word in schema:
            raise schema_error(f"'{word}' is not supported")
    alone = next((word for word in ALONE if word in schema), None)
    other = next((word for word in schema if alone is not None and word != alone and word not in NOTES), None)
    if other is not None:
        raise schema_error(f"'{other[:80]}' beside '{alone}' is not supported")
    target = schema.get("$ref", "#")
    if not (isinstance(target, str) and REFERENCE.fullmatch(target)):
        raise schema_error("'$ref' names no schema of this one: it is '#', '#/$defs/NAME' or '#/definitions/NAME'")


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    """A schema and all inside of it."""
    if isinstance(value, list):
        for one in value:
            yield from _schemas(one)
    elif isinstance(value, dict):
        yield value
        for word, inner in value.items():
            if word in NAMED and isinstance(inner, dict):
                yield from _schemas(list(inner.values()))
            elif word not in VALUES:
                yield from _schemas(inner)


def _levels(value: Any) -> int:
    """How many objects and lists stand inside of each other."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_levels, value.values() if isinstance(value, dict) else value), default=0)
