"""Splits text into passages: JSON lines of a sample, or paragraphs. Used by clients and by pages."""

from __future__ import annotations

import re

from registry.errors import InvalidSample
from registry.spec import Passage
from registry.spec.passage import decode_lines


def split_texts(text: str, *, label: str, is_lines: bool | None = None) -> list[Passage]:
    """The passages of JSON lines or paragraphs; without `is_lines` the first character decides.

    Raises InvalidSample, whose message calls the text `label` and names the invalid line.
    """
    if is_lines is None:
        is_lines = text.lstrip().startswith("{")
    passages = decode_lines(text, name=lambda number: f"{label}, line {number},") if is_lines else _paragraphs(text)
    if not passages:
        raise InvalidSample(f"{label} holds no text.", param="sample")
    return passages


def _paragraphs(text: str) -> list[Passage]:
    """The paragraphs of a text, with LF for CRLF."""
    paragraphs = re.split(r"\n[ \t\r]*\n", text.replace("\r\n", "\n"))
    return [paragraph.strip() for paragraph in paragraphs if paragraph.strip()]
