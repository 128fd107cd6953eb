r"""Match untrusted regular expressions with RE2, in time linear in the text, as Python's `re` would.

PEFT reads `rank_pattern`, `alpha_pattern` and a textual `target_modules` with Python's `re`, where a short expression
can keep the server busy forever. RE2 has no look-around and no backreferences, and reads some syntax differently; all
of these are refused. Names of modules are ASCII without line breaks (`ModulePath`), so that Unicode digits and `$`
before the last line break make no difference. Work is counted in steps, not by a clock, so that every machine refuses
the same expressions. Called by `patterns`.
"""

from __future__ import annotations

import re
from typing import Any

import re2

MAX_LENGTH = 2000
MAX_MEMORY = 256 * 1024
"""Bytes that RE2 may take for one expression: its program and its cached states."""
MAX_STEPS = 500_000_000
"""Budget of all expressions of a configuration; at 2 to 8 ns each, about four seconds at worst."""
READING = 1000
"""Steps of each character of an expression, and of a hundred characters more for each expression."""
COMPILING = 50
"""Steps of each instruction of a compiled program."""
MATCHING = 250
"""Steps of a match, besides instructions of the program x characters of the text."""

_ESCAPES = re.compile(r"\\(?:[dDwWsSbA]|[^A-Za-z0-9])")
_REFUSED = re.compile(r"\\.?|\(\?(?!:).?|\[:|\{,|\{(?:\d+,)?0\d")
"""Syntax that RE2 reads differently: other escapes, groups with options or names, POSIX classes, `{,3}`, `{03}`."""


class UnsupportedPatternError(ValueError):
    """A regular expression with unsupported syntax, or with more work than its budget."""


class StepBudget:
    """The steps that the patterns sharing it may still make."""

    def __init__(self) -> None:
        self._remaining = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Take steps; raises UnsupportedPatternError when too few remain."""
        self._remaining -= steps
        if self._remaining < 0:
            raise UnsupportedPatternError("it takes too long")


class Pattern:
    """One regular expression, which is matched with whole texts."""

    def __init__(self, source: str, budget: StepBudget | None = None, *, after_dot: bool = False) -> None:
        r"""Compile `source`; with `after_dot` the end of a text after a dot matches too: PEFT's `(.*\.)?(source)$`.

        Raises UnsupportedPatternError.
        """
        self._budget = budget or StepBudget()
        if len(source) > MAX_LENGTH:
            raise UnsupportedPatternError(f"it has {len(source)} characters, and {MAX_LENGTH} are the most")
        self._budget.spend(READING * (100 + len(source)))
        if refused := _REFUSED.search(_ESCAPES.sub("_", source)):
            raise UnsupportedPatternError(f"it has {refused[0]!r}")
        self._compile(source)
        if after_dot:  # compiled alone first, so that a ')' in the source cannot close this group
            self._compile(rf"(?:.*\.)?(?:{source})")

    def _compile(self, source: str) -> None:
        self._compiled = _compiled(source)
        self._instructions: int = self._compiled.programsize
        self._budget.spend(COMPILING * self._instructions)

    def matches(self, text: str) -> bool:
        """Return True if all of `text` matches; raises UnsupportedPatternError when the budget is used up."""
        self._budget.spend(MATCHING + self._instructions * (len(text) + 1))
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
        raise UnsupportedPatternError(f"it has {source[error.start]!r}, and modules have no such names") from None
    except re2.error as error:
        raise UnsupportedPatternError(error.args[0].decode()[:80]) from None
