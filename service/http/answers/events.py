"""Server-sent events of streamed answers: `data: `, a JSON value, an empty line.

Called by `streaming`, `completions` and `chat`. A stream has an event for every token, so the fields that all events
share are encoded once (`ChunkEncoder`); a test checks every event against the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""One encoder for all values, since `json.dumps` with options makes one for every call."""
DONE = "data: [DONE]\n\n"
"""The event that ends a complete stream."""


def event(value: BaseModel) -> str:
    """Return a value as an event, without its unset fields."""
    return f"data: {JSON.encode(value.model_dump(exclude_unset=True))}\n\n"


class ChunkEncoder:
    """Encoder of the events of one stream: the fields of `head`, then `choices` with one entry.

    With `usage` each event has the field `usage`, which is null until the last event.
    """

    def __init__(self, head: Mapping[str, Any], *, usage: bool) -> None:
        self._prefix = f'data: {JSON.encode(head)[:-1]}, "choices": ['
        self._suffix = '], "usage": null}\n\n' if usage else "]}\n\n"

    def encode(self, choice: str) -> str:
        """Return the event of a choice, which is given as JSON."""
        return self._prefix + choice + self._suffix
