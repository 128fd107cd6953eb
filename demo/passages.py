"""Cutting documents into passages, keeping each once, and passages short; pure functions on text."""

from __future__ import annotations

import re
from collections.abc import Iterator

SHORTEST, ENOUGH, LONGEST = 300, 700, 1500
SHINGLE = 8
MOSTLY_SEEN = 0.3


def cut(text: str, *, shortest: int = SHORTEST, longest: int = LONGEST) -> list[str]:
    """Passages of `shortest` to `longest` characters, cut between paragraphs, else between lines, else anywhere.

    A passage ends with the paragraph that brings it to ENOUGH. A rest that is too short joins the passage before it
    where there is room, and is dropped where there is none.
    """
    pieces: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n+", text.strip()):
        pieces += _lines_of(paragraph.rstrip(), longest)
    passages: list[str] = []
    held = ""
    for piece in pieces:
        joined = f"{held}\n\n{piece}" if held else piece
        if len(held) >= ENOUGH or (len(joined) > longest and len(held) >= shortest):
            passages.append(held)
            held = piece
        else:
            held = joined[:longest]
    if len(held) >= shortest:
        passages.append(held)
    elif held and passages and len(passages[-1]) + len(held) + 2 <= longest:
        passages[-1] += f"\n\n{held}"
    return [passage.strip("\n") for passage in passages]


def _lines_of(paragraph: str, longest: int) -> Iterator[str]:
    """The paragraph in pieces of at most `longest` characters."""
    held = ""
    for line in paragraph.split("\n"):
        if held and len(held) + 1 + len(line) > longest:
            yield held
            held = ""
        held = f"{held}\n{line}" if held else line
        while len(held) > longest:
            yield held[:longest]
            held = held[longest:]
    if held.strip():
        yield held


class Seen:
    """What was kept so far, as runs of eight words: says whether a passage is new, whatever file it comes from."""

    def __init__(self) -> None:
        self._runs: set[int] = set()

    def is_new(self, passage: str) -> bool:
        """True, and remembered, where fewer than three in ten of its runs of words were seen before."""
        words = re.findall(r"\w+", passage.lower())
        runs = {hash(tuple(words[i : i + SHINGLE])) for i in range(max(1, len(words) - SHINGLE + 1))}
        if len(runs & self._runs) >= MOSTLY_SEEN * len(runs):
            return False
        self._runs |= runs
        return True


def shorten(text: str, most: int) -> str:
    """The beginning of a passage, to the last end of a sentence within `most` characters, else to the last space."""
    if len(text) <= most:
        return text
    kept = text[:most]
    end = max(kept.rfind(mark) + 1 for mark in (". ", ".\n", "? ", "! ", "; "))
    return (kept[:end] if end > most // 2 else kept[: kept.rfind(" ")]).rstrip()
