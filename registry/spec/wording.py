"""Rewords pydantic's errors in the terms of the API: lists and objects, where pydantic names Python's types.

Used where requests, files and flags are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.names import PART_PATTERN
from registry.spec.unions import UNION_MEMBERS

_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type")
_OBJECTS = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")


def describe_error(error: Mapping[str, Any]) -> str:
    """The predicate of a sentence about a value, without a full stop, for one of pydantic's errors."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _LISTS:
        return "must be a list"
    if kind in _OBJECTS:
        return "must be an object"
    if kind == "string_pattern_mismatch" and context.get("pattern") == PART_PATTERN:
        return "must have 1 to 64 of a-z, 0-9, '.', '_' and '-', and start with a letter or digit"
    if kind == "union_tag_not_found":
        names = members_of_union(error)
        return f"needs the field {context['discriminator']}" + (f", one of {names}" if names else "")
    if kind in ("too_short", "too_long"):
        return _length(kind, context)
    if kind in ("string_too_short", "string_too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        return (
            f"must have at least {_characters(least)}"
            if least is not None
            else f"must have at most {_characters(most)}"
        )
    return str(error.get("msg", "is not valid")).removeprefix("Value error, ").rstrip(".")


def members_of_union(error: Mapping[str, Any]) -> str:
    """The values that a union's missing discriminator may have, as text; empty for a union without a name."""
    field = str(error["loc"][-1]) if error["loc"] else ""
    return ", ".join(sorted(UNION_MEMBERS.get(field, ())))


def _length(kind: str, context: Mapping[str, Any]) -> str:
    """The bound that a list or an object violates, and its length where pydantic has counted it."""
    number = int(context["min_length" if kind == "too_short" else "max_length"])
    singular, plural = ("entry", "entries") if context.get("field_type") == "Dictionary" else ("item", "items")
    bound = f"at {'least' if kind == 'too_short' else 'most'} {number} {singular if number == 1 else plural}"
    length = context.get("actual_length")
    return f"must have {bound}" + ("" if length is None else f", and has {length}")


def _characters(number: Any) -> str:
    return f"{number} character" + ("" if number == 1 else "s")
