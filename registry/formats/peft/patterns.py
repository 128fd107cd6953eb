"""PEFT's fields of single modules: rank_pattern, alpha_pattern, target_modules, exclude_modules, layers_to_transform.

Matched as PEFT 0.21 does (`peft/utils/other.py: get_pattern_key`, `peft/tuners/tuners_utils.py:
check_target_module_exists`). Tables can be long and come from people: names are looked up, never searched for, and all
regular expressions of a configuration share a bounded amount of work. Called by `lora`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from registry.formats.peft.expressions import Pattern, UnreadPatternError, Work

DEFAULT_RANK = 8
DEFAULT_ALPHA = 8
_NAME = re.compile(r"\^?[A-Za-z0-9_]+(?:\\?\.[A-Za-z0-9_]+)*", re.ASCII)
"""A key that is a module's name, its dots escaped or not; read as that name although PEFT's `.` is any character."""


def _ends(path: str) -> Iterator[str]:
    """A path and what follows each of its dots: the names it may be called by."""
    yield path
    for at, character in enumerate(path):
        if character == ".":
            yield path[at + 1 :]


class PatternTable:
    """`rank_pattern` or `alpha_pattern`: the value of the first key that matches a module (`get_pattern_key`)."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._names: dict[str, tuple[int, float]] = {}
        self._patterns: list[tuple[int, Pattern, float]] = []

    def add(self, key: str, value: float) -> None:
        """Add the next key of the table; raises UnreadPatternError."""
        order = len(self._names) + len(self._patterns)
        if _NAME.fullmatch(key):
            self._names.setdefault(key.replace("\\", ""), (order, value))
        else:
            self._patterns.append((order, Pattern(key, self._work, after_dot=True), value))

    def value(self, path: str) -> float | None:
        """The value for a module; None where no key matches. Raises UnreadPatternError when that takes too long."""
        named = [self._names[end] for end in (f"^{path}", *_ends(path)) if end in self._names]
        found = min(named, default=None)
        for order, pattern, value in self._patterns:
            if found is not None and found[0] < order:
                break
            if pattern.full(path):
                return value
        return None if found is None else found[1]


class PeftFields:
    """Rank and alpha of every module, and whether it is a target; `problems` has a sentence for each wrong value."""

    def __init__(self, peft: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._work = Work()
        self._peft = peft
        self._rank = self._number("r", peft.get("r", DEFAULT_RANK), whole=True)
        self._alpha = self._number("lora_alpha", peft.get("lora_alpha", DEFAULT_ALPHA), whole=False)
        self._ranks = self._patterns("rank_pattern")
        self._alphas = self._patterns("alpha_pattern")
        self._target = self._modules("target_modules")
        self._exclude = self._modules("exclude_modules")
        self._layers = self._numbers("layers_to_transform")
        if not isinstance(peft.get("use_rslora"), bool | None):
            self.problems.append("use_rslora is neither true nor false.")

    def module(self, path: str) -> tuple[int | None, float]:
        """Rank and alpha of a module: the first pattern that matches, else the default; no rank where nobody says.

        Raises UnreadPatternError, as `targets` does, when the regular expressions take too long.
        """
        rank = self._ranks.value(path) or self._rank
        return (None if rank is None else int(rank)), (self._alphas.value(path) or self._alpha or DEFAULT_ALPHA)

    def targets(self, path: str) -> bool:
        """Whether PEFT would put a LoRA on this module; True where that cannot be told."""
        if isinstance(self._exclude, frozenset) and _named(path, self._exclude):
            return False
        if isinstance(self._exclude, Pattern) and self._exclude.full(path):
            return False
        if isinstance(self._target, Pattern):
            return self._target.full(path)
        if self._target is None or path in self._target:
            return True
        return _named(path, self._target) and self._in_layers(path)

    def _in_layers(self, path: str) -> bool:
        patterns = self._peft.get("layers_pattern")
        names = [patterns] if isinstance(patterns, str) and patterns else patterns or []
        if not self._layers or not (isinstance(names, list) and all(_is_name(name) for name in names)):
            return True
        number = _layer(path, names)
        return number is not None and number in self._layers

    def _number(self, what: str, value: object, *, whole: bool) -> float | None:
        """A positive number, whole for ranks; None with a problem noted for anything else."""
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if numeric and 0 < value <= 1e9 and (not whole or value == int(value)):  # type: ignore[operator, call-overload]
            return value  # type: ignore[return-value]
        self.problems.append(f"{what} is {str(value)[:40]!r}, not a {'whole ' if whole else ''}number above zero.")
        return None

    def _patterns(self, field: str) -> PatternTable:
        table, found = self._peft.get(field) or {}, PatternTable(self._work)
        if not isinstance(table, dict):
            self.problems.append(f"{field} is not a table of modules.")
            return found
        for key, value in table.items():
            number = self._number(f"{field} of {key[:80]!r}", value, whole=field == "rank_pattern")
            try:
                found.add(key, number or 1)
            except UnreadPatternError as error:
                self.problems.append(f"{field} has {key[:80]!r}, which is not read here: {error}; name the modules.")
        return found

    def _modules(self, field: str) -> frozenset[str] | Pattern | None:
        """Names of modules or a regular expression; None where it cannot be told: nothing is said, all linear modules
        are meant, or the expression is beyond what is read here."""
        value = self._peft.get(field)
        if value is None or value == "" or (isinstance(value, str) and value.lower() == "all-linear"):
            return None
        if isinstance(value, str):
            try:
                return Pattern(value, self._work)
            except UnreadPatternError:
                return None
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return frozenset(value)
        self.problems.append(f"{field} is neither a list of names nor a text.")
        return None

    def _numbers(self, field: str) -> frozenset[int]:
        value = self._peft.get(field)
        numbers = [] if value is None else value if isinstance(value, list) else [value]
        if all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            return frozenset(numbers)
        self.problems.append(f"{field} is neither a layer's number nor a list of them.")
        return frozenset()


def _named(path: str, names: frozenset[str]) -> bool:
    return any(end in names for end in _ends(path))


def _is_name(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9_]+", text) is not None


def _layer(path: str, names: list[str]) -> int | None:
    """The layer PEFT reads from a path: the first number after one of `names`, or without names after two parts."""
    parts = path.split(".")
    for at, part in enumerate(parts[:-1]):
        if part.isascii() and part.isdigit() and ((at >= 1 and parts[at - 1] in names) if names else at >= 2):
            return int(part)
    return None
