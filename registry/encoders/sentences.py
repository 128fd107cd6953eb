"""Split passages into sentences by rule: no model, no language data, the same result on every machine.

Called by the sentence-BERT encoder, whose digest names a version: a changed rule here is a new version there.
Paragraphs end at blank lines; wrapped lines are joined, but headings and list items stay lines of their own; a block of
code is one unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A run of closing punctuation, quotes or brackets after it, one space, and the start of something new. The
# look-behind lets a match start only where a run starts, so that a megabyte of '!' is read once.
_END = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*(?= [\"'“‘(\[]*[^\W_a-z])|[。！？]+")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]*$")
_WORD_WINDOW = 40
_BULLET = re.compile(r"\s*(?:[-*+•‣▪–—]|\(?\d{1,3}[.)]|\(?[a-z]\))\s+\S")
_CODE_END = re.compile(r"[{};]\s*$|[)\]]:\s*$")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_CODE_INDENT = re.compile(r"(?:\t| {4,})\S")
_SHORT_LINE = 50

_ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|rev|hon|gen|col|capt|lt|sgt|gov|sen|rep|pres|st|jr|sr|messrs|mt|ft|inc|ltd|co|corp|bros|dept"
    r"|univ|assn|e\.g|i\.e|viz|cf|al|vs|etc|ca|approx|est|eds|trans|repr|u\.s|u\.k|u\.n|ph\.d|m\.d|b\.a|m\.a"
    r"|jan|feb|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)
_BEFORE_NUMBERS = re.compile(r"(?:no|fig|vol|sec|art|eq)s?|pp?|vv?|par|ch|cl|cap|app", re.IGNORECASE)


def split_sentences(text: str) -> list[str]:
    """The sentences of `text` in order; pieces without a letter or digit are dropped unless nothing else is there.

    A text of white space alone has none. White space inside a sentence is single blanks, except in code.
    """
    pieces = [piece for block, code in _blocks(text) for piece in ([block] if code else _sentences(block))]
    sentences = [piece for piece in pieces if any(character.isalnum() for character in piece)]
    return sentences or pieces[:1]


def _blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Runs of lines that belong together, and True for code."""
    lines: list[str] = []
    code = fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            yield from _join(lines, code)
            lines, fenced = [], not fenced
            continue
        if not line.strip() and not fenced:
            yield from _join(lines, code)
            lines = []
            continue
        is_code = fenced or _is_code(line)
        if lines and (is_code != code or (not is_code and _starts_block(lines[-1], line))):
            yield from _join(lines, code)
            lines = []
        lines.append(line)
        code = is_code
    yield from _join(lines, code)


def _join(lines: list[str], code: bool) -> Iterator[tuple[str, bool]]:
    block = "\n".join(lines).strip() if code else " ".join(" ".join(lines).split())
    if block:
        yield block, code


def _is_code(line: str) -> bool:
    """Return True for braces and semicolons at the end, or an indented line that is not wrapped prose."""
    if _CODE_END.search(line):
        return True
    if not _CODE_INDENT.match(line) or _BULLET.match(line):
        return False
    letters = sum(character.isalpha() or character == " " for character in line)
    return letters < 0.85 * len(line)


def _starts_block(previous: str, line: str) -> bool:
    """Return True unless `line` is the wrapped rest of the line before it."""
    if _BULLET.match(line):
        return True
    first = line.lstrip()[:1]
    return len(previous.strip()) < _SHORT_LINE and (first.isupper() or first.isdigit())


def _sentences(block: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(block):
        if _is_abbreviation(block, match):
            continue
        yield block[start : match.end()].strip()
        start = match.end()
    rest = block[start:].strip()
    if rest:
        yield rest


def _is_abbreviation(block: str, match: re.Match[str]) -> bool:
    """Return True if the stop of `match` belongs to a word: an abbreviation, an initial, the number of an item."""
    if match.group() != ".":
        return False
    window = block[max(0, match.start() - _WORD_WINDOW) : match.start()]
    last_word = _LAST_WORD.search(window)
    word = last_word.group() if last_word else ""
    if len(word) == 1 and word.isupper() and word != "I":
        return True
    if word.isdigit() and match.start() == len(word):
        return True
    if _BEFORE_NUMBERS.fullmatch(word):
        return block[match.end() + 1 : match.end() + 2].isdigit()
    return _ABBREVIATION.fullmatch(word) is not None
