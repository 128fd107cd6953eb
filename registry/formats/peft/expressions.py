r"""A stranger's regular expression, matched by RE2 in time linear in the text, as Python's `re` would match it.

PEFT reads `rank_pattern`, `alpha_pattern` and a textual `target_modules` with Python's `re`, where a short expression
can keep the server busy for ever. RE2 has no look-around and no backreferences, and reads a few things otherwise than
Python; all of these are refused. Names of modules are ASCII without line breaks (`ModulePath`), so Unicode digits and a
`$` before the last line break need no thought. How much is done is counted in steps and not by a clock: what is refused
is the same on every machine. Called by `patterns`.
"""

from __future__ import annotations

import re
from typing import Any

import re2

MAX_LENGTH = 2000
MAX_MEMORY = 256 * 1024
"""Bytes that RE2 may take for one expression: its program, and the states it keeps."""
MAX_STEPS = 500_000_000
"""For all expressions of a configuration; at 2 to 8 ns each, about four seconds at worst."""
READING = 1000
"""Steps that a character of an expression counts for; compiling one counts as a hundred characters more."""
COMPILING = 50
"""Steps that an instruction of a compiled program counts for."""
MATCHING = 250
"""Steps that a match counts for beside instructions of the program x characters of the text."""

_ESCAPES = re.compile(r"\\(?:[dDwWsSbA]|[^A-Za-z0-9])")
_OTHERWISE = re.compile(r"\\.?|\(\?(?!:).?|\[:|\{,|\{(?:\d+,)?0\d")
"""Other escapes, groups with options or names, POSIX classes, `{,3}` and `{03}`."""


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
    """One regular expression, which the whole of a text matches or not."""

    def __init__(self, source: str, work: Work | None = None, *, after_dot: bool = False) -> None:
        r"""With `after_dot` a text matches too by what follows one of its dots: `(.*\.)?(source)$`, as PEFT has it.

        Raises UnreadPatternError.
        """
        self._work = work or Work()
        if len(source) > MAX_LENGTH:
            raise UnreadPatternError(f"it has {len(source)} characters, and {MAX_LENGTH} are the most")
        self._work.spend(READING * (100 + len(source)))
        if found := _OTHERWISE.search(_ESCAPES.sub("_", source)):
            raise UnreadPatternError(f"it has {found[0]!r}")
        self._read(source)
        if after_dot:  # the source has been read alone: a ')' of it closes nothing of ours
            self._read(rf"(?:.*\.)?(?:{source})")

    def _read(self, source: str) -> None:
        self._compiled = _compiled(source)
        self._instructions: int = self._compiled.programsize
        self._work.spend(COMPILING * self._instructions)

    def full(self, text: str) -> bool:
        """Whether all of `text` matches; raises UnreadPatternError when the steps are used up."""
        self._work.spend(MATCHING + self._instructions * (len(text) + 1))
        return self._compiled.fullmatch(text.encode("ascii")) is not None


def _compiled(source: str) -> Any:
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(source.encode("ascii"), options)
    except UnicodeEncodeError as error:
        raise UnreadPatternError(f"it has {source[error.start]!r}, and modules have no such names") from None
    except re2.error as error:
        raise UnreadPatternError(error.args[0].decode()[:80]) from None
