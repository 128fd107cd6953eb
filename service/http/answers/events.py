"""Server-sent events of streamed answers: `data: `, a JSON value, an empty line.

Called by `streaming`, `completions`, `chat` and the route of jobs. A stream has an event for every token, so chunks are
encoded without their schema; a test checks every event against it.
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


def chunk(head: Mapping[str, Any], choice: Mapping[str, Any], *, usage: bool) -> str:
    """Return the event of one choice; with `usage` it has that field, which is null until the last event."""
    value = {**head, "choices": [choice], "usage": None} if usage else {**head, "choices": [choice]}
    return f"data: {JSON.encode(value)}\n\n"


def event_comment(text: str) -> str:
    """Return a line of text as a comment, which clients ignore; it keeps a silent connection open."""
    return f": {text}\n\n"
