"""Whether any JSON satisfies a JSON schema, as far as schemas that require each other without end have to say.

Called by `json_schema` with one that it has checked. A schema is satisfied by something of finite length where all the
schemas that it requires are, or one of its alternatives is: that is counted from those that require nothing (Dowling
and Gallier, 1984), in time linear in the schema's size, for schemas come from anybody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

PARTS = {"object", "array"}
"""Types of what has schemas inside."""


def is_endless(schema: dict[str, Any]) -> bool:
    """Whether whatever satisfies the schema would have no end, as where a required property is the schema itself."""
    found = _Graph()
    whole = found.add(schema)
    found.targets["#"] = whole
    for word in ("$defs", "definitions"):
        for name, one in schema.get(word, {}).items():
            found.targets[f"#/{word}/{name}"] = found.add(one)
    return whole not in found.ended()


class _Graph:
    """Schemas as numbers; each waits for so many of others to be known to end."""

    def __init__(self) -> None:
        self.waits: list[int] = []
        self.waiting: dict[int, list[int]] = defaultdict(list)
        self.references: list[tuple[int, str]] = []
        self.targets: dict[str, int] = {}

    def add(self, schema: Any) -> int:
        """The number of a schema; those that it requires are added with it."""
        if not isinstance(schema, dict):
            return self._all(())
        if "$ref" in schema:
            number = self._all(())
            self.references.append((number, schema["$ref"]))
            return number
        for word in ("anyOf", "oneOf"):
            if schema.get(word):  # an empty list is for the compiler to refuse, with its own reason
                return self._any([self.add(one) for one in schema[word]])
        types = set(_texts(schema.get("type")))
        if not types or types - PARTS:  # something without parts does
            return self._all(())
        return self._any([self._all([self.add(one) for one in _required(schema, kind)]) for kind in sorted(types)])

    def _all(self, others: Sequence[int]) -> int:
        return self._new(len(others), others)

    def _any(self, others: Sequence[int]) -> int:
        return self._new(1, others)

    def _new(self, waits: int, others: Sequence[int]) -> int:
        number = len(self.waits)
        self.waits.append(waits)
        for other in others:
            self.waiting[other].append(number)
        return number

    def ended(self) -> set[int]:
        """The schemas that something of finite length satisfies. One that is named and not there is left to others."""
        for number, name in self.references:
            if name in self.targets:
                self.waits[number] = 1
                self.waiting[self.targets[name]].append(number)
        found = {number for number, waits in enumerate(self.waits) if not waits}
        todo = list(found)
        while todo:
            for number in self.waiting[todo.pop()]:
                self.waits[number] -= 1
                if self.waits[number] == 0:
                    found.add(number)
                    todo.append(number)
        return found


def _texts(said: object) -> list[str]:
    """A text, or those of a list; what is neither is for the compiler to refuse."""
    return [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, str)]


def _required(schema: dict[str, Any], kind: str) -> list[Any]:
    """The schemas that every object, or every array, that satisfies a schema has something of."""
    if kind == "object":
        named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        return [named.get(name, others) for name in _texts(schema.get("required"))]
    fewest = schema.get("minItems", 0)
    first: list[Any] = schema.get("prefixItems", [])
    if not isinstance(fewest, int) or fewest < 0:  # for the compiler to refuse
        return []
    return first[:fewest] + ([schema.get("items", True)] if fewest > len(first) else [])
