"""What of JSON Schema an answer can be held to: which keywords, beside which others, and how large a schema.

Asked before a grammar is compiled. What is not listed here is refused by name: the compiler passes over keywords that
it does not know, and an answer would then break a rule that its schema states. Three more are left out though the
compiler has them. The numbers of properties (`minProperties`) are counted with a property that comes twice, which is
one to whoever reads the answer. A `multipleOf` of six digits compiles for half a minute. And what two schemas have in
common (`allOf`, or anything beside `$ref` or `anyOf`) multiplies with their alternatives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from registry.errors import InvalidParameter, TooLarge
from service.engine.endless_schema import is_endless

PARAM = "response_format"
MAX_CHARS = 65_536
"""Of the schema as JSON."""
MAX_DEPTH = 32
"""Schemas inside of each other."""
MAX_LENGTHS = 5_000
"""Characters of all strings whose length is bounded: the compiler makes about nine states for each of them."""
NOTES = frozenset(
    ("$comment", "$schema", "$defs", "definitions", "default", "deprecated", "description", "discriminator", "examples",
     "readOnly", "title", "writeOnly")
)  # fmt: skip
"""What says nothing of the answer, and where the schemas stand that `$ref` names."""
REFERENCE = re.compile(r"#|#/(\$defs|definitions)/[^/%]+")
"""What `$ref` may name: the whole, or what stands where schemas are looked at; not one inside of a note or a value."""
UNSPELLED = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that an answer cannot have: JSON writes them by `\\u`, which answers do without."""
_VALUES = ("enum", "const")
_ALONE = ("$ref", "anyOf", "oneOf", *_VALUES)
_TYPED = frozenset(
    ("additionalProperties", "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maximum", "maxItems",
     "maxLength", "minimum", "minItems", "minLength", "pattern", "prefixItems", "properties", "required", "type")
)  # fmt: skip
_FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")


def checked_schema(schema: dict[str, Any]) -> str:
    """The schema as canonical JSON; raises InvalidParameter for what is not supported, TooLarge for what is too large.

    The order of properties stays: it is the order of the answer.
    """
    _check(schema, "schema", MAX_DEPTH)
    if is_endless(schema):
        raise refusal("whatever satisfies it would have no end, since it requires itself")
    if (lengths := _lengths(schema)) > MAX_LENGTHS:
        raise TooLarge(
            f"The JSON schema bounds strings of {lengths} characters together by 'minLength' and 'maxLength'; at most "
            f"{MAX_LENGTHS} are taken.",
            param=PARAM,
        )
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if len(text) > MAX_CHARS:
        raise TooLarge(f"The JSON schema has {len(text)} characters; at most {MAX_CHARS} are taken.", param=PARAM)
    return text


def refusal(problem: str) -> InvalidParameter:
    """The error of a schema that cannot be followed, for what `problem` says."""
    return InvalidParameter(f"The JSON schema cannot be followed: {problem}.", param=PARAM)


def _check(schema: Any, where: str, depth: int) -> None:
    """Raises for what is not supported in a schema and those inside of it; `where` says which one it is."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise refusal(f"{where} is no object")
    if not depth:
        raise TooLarge(f"In the JSON schema more than {MAX_DEPTH} schemas stand inside of each other.", param=PARAM)
    _check_keywords(schema, where)
    for name, inner in _schemas_in(schema, where):
        _check(inner, name, depth - 1)


def _check_keywords(schema: dict[str, Any], where: str) -> None:
    said = [word for word in schema if word not in NOTES]
    unknown = next((word for word in said if word not in _TYPED and word not in _ALONE), None)
    if unknown is not None:
        raise refusal(f"'{unknown[:80]}' in {where} is not supported")
    alone = next((word for word in _ALONE if word in schema), None)
    beside = {alone, "type"} if alone in _VALUES else {alone}
    other = next((word for word in said if word not in beside), None)
    if alone is not None and other is not None:
        raise refusal(f"'{other}' beside '{alone}' in {where} is not supported")
    target = schema.get("$ref", "#")
    if not (isinstance(target, str) and REFERENCE.fullmatch(target)):
        raise refusal(
            f"'$ref' in {where} names no schema of this one: it is '#', '#/$defs/NAME' or '#/definitions/NAME'"
        )
    if any(UNSPELLED.search(text) for word in _VALUES if word in schema for text in _texts_of(schema[word])):
        raise refusal(f"a control character in {where} is not supported")
    if "format" in schema and schema["format"] not in _FORMATS:
        raise refusal(f"the 'format' in {where} is not supported, only {', '.join(_FORMATS)}")


def _lengths(schema: Any) -> int:
    """The characters that strings in a checked schema have at most, where that is bounded, else at least."""
    if not isinstance(schema, dict):
        return 0
    own = [schema[word] for word in ("minLength", "maxLength") if isinstance(schema.get(word), int)]
    return max(own, default=0) + sum(_lengths(inner) for _, inner in _schemas_in(schema, ""))


def _texts_of(value: object) -> Iterator[str]:
    """Every string in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value if isinstance(value, list) else [*value, *value.values()]:
            yield from _texts_of(one)


def _schemas_in(schema: dict[str, Any], where: str) -> list[tuple[str, Any]]:
    """The schemas right inside of one, each with what it is called."""
    found: list[tuple[str, Any]] = []
    for word in ("properties", "$defs", "definitions"):
        named = schema.get(word, {})
        if not isinstance(named, dict):
            raise refusal(f"'{word}' in {where} is no object")
        found += [(f"{where}.{word}.{name}"[:200], inner) for name, inner in named.items()]
    for word in ("anyOf", "oneOf", "prefixItems"):
        listed = schema.get(word, [])
        if not isinstance(listed, list):
            raise refusal(f"'{word}' in {where} is no list")
        found += [(f"{where}.{word}.{number}"[:200], inner) for number, inner in enumerate(listed)]
    alone = [word for word in ("items", "additionalProperties") if word in schema]
    return found + [(f"{where}.{word}"[:200], schema[word]) for word in alone]
