r"""Regular expressions that came from people, matched in polynomial time.

PEFT reads `rank_pattern`, `alpha_pattern` and a textual `target_modules` as regular expressions; Python's own engine
would let a short one keep the server busy for ever. This one follows all positions at once and knows what names of
modules need: literals, `.`, classes, `\d`, `\w`, groups, `|`, `* + ? {m,n}`, `^` and `$`. Called by `peft`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set

Matcher = Callable[[str, Set[int]], Set[int]]
"""(text, positions where it may begin) -> positions where it may end."""
MAX_LENGTH = 2000
MAX_REPEAT = 64
MAX_DEPTH = 4
MAX_STEPS = 20_000_000
READING = 100
"""Steps that a character of an expression counts for: what it takes to read it once."""
_TOKEN = re.compile(
    r"\(\?:|[()|^$.]|[*+?]\??|\{\d{1,3}(?:,\d{0,3})?\}|\\[dw.\-_^$|()\[\]{}*+?\\]|\[\^?(?:\\.|[^\]\\])+\]|[A-Za-z0-9_\-/:]",
    re.ASCII,
)


class UnreadPatternError(ValueError):
    """A regular expression with something in it that is not read here, or more work than is done for one."""


class Work:
    """Steps that may still be made with the patterns that share it."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Raises UnreadPatternError when they are used up."""
        self._left -= steps
        if self._left < 0:
            raise UnreadPatternError("it takes too long")


class Pattern:
    """One regular expression."""

    def __init__(self, source: str, work: Work | None = None) -> None:
        """Raises UnreadPatternError."""
        self._work = work or Work()
        self._work.spend(READING * min(len(source), MAX_LENGTH))
        tokens = _tokens(source)
        self._match, rest = _Reader(tokens, self._work).alternatives(0, depth=0)
        if rest != len(tokens):
            raise UnreadPatternError("a ')' without its '('")

    def full(self, text: str) -> bool:
        """Whether all of `text` matches, as with `re.fullmatch`; raises UnreadPatternError when that takes too long."""
        self._work.spend(1)
        return len(text) in self._match(text, {0})

    def tail(self, text: str) -> bool:
        r"""Whether `text`, or what follows one of its dots, matches: `(.*\.)?(pattern)$`. Raises as `full` does."""
        self._work.spend(1 + len(text))
        return len(text) in self._match(text, {0, *(i + 1 for i, character in enumerate(text) if character == ".")})


def _tokens(source: str) -> list[str]:
    if len(source) > MAX_LENGTH:
        raise UnreadPatternError(f"it has {len(source)} characters, and {MAX_LENGTH} are the most")
    found, position = [], 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise UnreadPatternError(f"{source[position : position + 12]!r} at character {position}")
        found.append(match[0])
        position = match.end()
    return found


class _Reader:
    """Tokens to matchers."""

    def __init__(self, tokens: list[str], work: Work) -> None:
        self._tokens = tokens
        self._work = work

    def alternatives(self, at: int, *, depth: int) -> tuple[Matcher, int]:
        """The matcher of what stands from `at` to the end or an unmatched `)`, and where that is."""
        if depth > MAX_DEPTH:
            raise UnreadPatternError(f"more than {MAX_DEPTH} groups in each other")
        branches = []
        while True:
            branch, at = self._sequence(at, depth=depth)
            branches.append(branch)
            if at == len(self._tokens) or self._tokens[at] != "|":
                return self._either(branches), at
            at += 1

    def _sequence(self, at: int, *, depth: int) -> tuple[Matcher, int]:
        parts: list[Matcher] = []
        while at < len(self._tokens) and self._tokens[at] not in {"|", ")"}:
            if self._tokens[at] in {"(", "(?:"}:
                part, at = self.alternatives(at + 1, depth=depth + 1)
                if at == len(self._tokens):
                    raise UnreadPatternError("a '(' without its ')'")
            else:
                part = self._atom(self._tokens[at])
            at += 1
            if at < len(self._tokens) and (bounds := _bounds(self._tokens[at])):
                part = self._repeated(part, *bounds)
                at += 1
            parts.append(part)
        return self._in_turn(parts), at

    def _atom(self, piece: str) -> Matcher:
        if _bounds(piece):
            raise UnreadPatternError(f"{piece!r} with nothing to repeat")
        try:
            one = re.compile(piece if len(piece) > 1 or piece in ".^$" else re.escape(piece), re.ASCII)
        except re.error as error:
            raise UnreadPatternError(f"{piece[:40]!r}, for {error}") from None
        if piece in "^$":
            return lambda text, starts: starts & {0 if piece == "^" else len(text)}

        def match(text: str, starts: Set[int]) -> Set[int]:
            return {at + 1 for at in starts if at < len(text) and one.match(text, at)}

        return match

    def _repeated(self, part: Matcher, least: int, most: int | None) -> Matcher:
        def rounds(text: str, starts: Set[int]) -> Iterator[Set[int]]:
            """Where the part may end, repetition by repetition; from `least` on only ends not seen before."""
            seen: set[int] = set()
            number = 0
            while starts and (most is None or number <= most):
                self._work.spend(1 + len(starts))
                if number >= least:
                    starts = starts - seen
                    seen |= starts
                    yield starts
                starts = part(text, starts)
                number += 1

        return lambda text, starts: set().union(*rounds(text, starts))

    def _either(self, branches: list[Matcher]) -> Matcher:
        if len(branches) == 1:
            return branches[0]

        def ends(text: str, starts: Set[int]) -> Iterator[Set[int]]:
            for branch in branches:
                self._work.spend(1 + len(starts))
                yield branch(text, starts)

        return lambda text, starts: set().union(*ends(text, starts))

    def _in_turn(self, parts: list[Matcher]) -> Matcher:
        def match(text: str, starts: Set[int]) -> Set[int]:
            for part in parts:
                self._work.spend(1 + len(starts))
                starts = part(text, starts)
                if not starts:
                    break
            return starts

        return match


def _bounds(piece: str) -> tuple[int, int | None] | None:
    """Least and most repetitions of a quantifier, None for no limit; None for another piece."""
    simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if piece[0] in simple:
        return simple[piece[0]]
    if piece[0] != "{":
        return None
    low, comma, high = piece[1:-1].partition(",")
    least, most = int(low), (int(high) if high else None) if comma else int(low)
    if max(least, most or 0) > MAX_REPEAT:
        raise UnreadPatternError(f"{piece!r}, more than {MAX_REPEAT} repetitions")
    return least, most
