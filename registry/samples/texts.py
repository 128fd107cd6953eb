"""Split text into passages: JSON lines of {"text"}, or paragraphs. Used by clients and by pages."""

from __future__ import annotations

import re

from registry.errors import InvalidSample
from registry.files import decode_lines


def split_texts(text: str, *, what: str, is_lines: bool | None = None) -> list[str]:
    """The texts of JSON lines or of paragraphs, whichever the first character says where nothing else does.

    Raises InvalidSample, about `what`, with the line that is wrong.
    """
    if is_lines is None:
        is_lines = text.lstrip().startswith("{")
    found = decode_lines(text, name=lambda number: f"{what}, line {number},") if is_lines else _paragraphs(text)
    if not found:
        raise InvalidSample(f"{what} holds no text.", param="sample")
    return found


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n[ \t\r]*\n", text) if part.strip()]
