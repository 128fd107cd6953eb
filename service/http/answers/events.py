"""Answers as server-sent events: `data: `, a JSON value, an empty line.

Called by `streaming` and by what puts answers together. A stream has an event for every token, and what they share is
encoded once (`Chunks`); that each is still what the schema says, a test holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel

from service.engine import Delta, Generation

JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""Made once: `json.dumps` would make one for every value."""
DONE = "data: [DONE]\n\n"
"""The event behind the last of a stream that is complete."""


def event(value: BaseModel) -> str:
    """One event of a value's JSON; what is unset is left out."""
    return f"data: {JSON.encode(value.model_dump(exclude_unset=True))}\n\n"


class Chunks:
    """Events of one stream that differ in the choice alone: a `head` of fields, then `choices` with one entry.

    With `usage` they also say that it is null, until an event of its own has it.
    """

    def __init__(self, head: Mapping[str, Any], *, usage: bool) -> None:
        self._before = f'data: {JSON.encode(head)[:-1]}, "choices": ['
        self._after = '], "usage": null}\n\n' if usage else "]}\n\n"

    def of(self, choice: str) -> str:
        """The event of a choice, which is JSON."""
        return self._before + choice + self._after


class Events(Protocol):
    """An answer as events, made of what the engine says as it comes. One for each stream."""

    def first(self) -> str:
        """Those before any token."""

    def of(self, number: int, found: Delta | Generation, /) -> str:
        """Those of a token of prompt `number`, or of its end; there may be none."""

    def last(self) -> str:
        """Those after everything, without [DONE]."""
