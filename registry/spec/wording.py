"""What pydantic says of a value, in the words of the API: lists and objects, where pydantic names Python's types.

Called by whatever refuses values that came from people: requests, files, and flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type")
_OBJECTS = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")


def said_of(error: Mapping[str, Any]) -> str:
    """What is wrong, of one of pydantic's errors: the rest of a sentence, without its full stop."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _LISTS:
        return "must be a list"
    if kind in _OBJECTS:
        return "must be an object"
    if kind in ("too_short", "too_long"):
        return _length(kind, context)
    if kind in ("string_too_short", "string_too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        return f"must have at least {_of(least)}" if least is not None else f"must have at most {_of(most)}"
    return str(error.get("msg", "is not valid")).removeprefix("Value error, ").rstrip(".")


def _length(kind: str, context: Mapping[str, Any]) -> str:
    """The bound that a list or an object breaks, and how many it holds where that was counted."""
    bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
    number = int(context["min_length" if kind == "too_short" else "max_length"])
    word = "entries" if context.get("field_type") == "Dictionary" else "items"
    word = {"entries": "entry", "items": "item"}[word] if number == 1 else word
    held = context.get("actual_length")
    return f"must have {bound} {word}" + ("" if held is None else f", and has {held}")


def _of(number: Any) -> str:
    return f"{number} character" + ("" if number == 1 else "s")
