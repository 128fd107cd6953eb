"""PEFT's fields of single modules: rank_pattern, alpha_pattern, target_modules, exclude_modules, layers_to_transform.

Matched as by PEFT 0.21 (`peft/utils/other.py: get_pattern_key`, `peft/tuners/tuners_utils.py:
check_target_module_exists`). Tables can be long and are untrusted: names are looked up in dictionaries, and all regular
expressions of a configuration share one budget of steps. Called by `lora`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from registry.formats.peft.expressions import Pattern, StepBudget, UnsupportedPatternError

DEFAULT_RANK = 8
DEFAULT_ALPHA = 8
_NAME = re.compile(r"\^?[A-Za-z0-9_]+(?:\\?\.[A-Za-z0-9_]+)*", re.ASCII)
"""A key that is a module's name, its dots escaped or not; read as that name although PEFT's `.` is any character."""


def _ends(path: str) -> Iterator[str]:
    """A path and its suffixes after each dot: the names that may refer to it."""
    yield path
    for at, character in enumerate(path):
        if character == ".":
            yield path[at + 1 :]


class PatternTable:
    """`rank_pattern` or `alpha_pattern`: the value of the first key that matches a module (`get_pattern_key`)."""

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._names: dict[str, tuple[int, float]] = {}
        self._patterns: list[tuple[int, Pattern, float]] = []

    def add(self, key: str, value: float) -> None:
        """Add the next key of the table; raises UnsupportedPatternError."""
        order = len(self._names) + len(self._patterns)
        if _NAME.fullmatch(key):
            self._names.setdefault(key.replace("\\", ""), (order, value))
        else:
            self._patterns.append((order, Pattern(key, self._budget, after_dot=True), value))

    def value(self, path: str) -> float | None:
        """The value for a module, or None; raises UnsupportedPatternError when the budget is used up."""
        named = [self._names[end] for end in (f"^{path}", *_ends(path)) if end in self._names]
        first_named = min(named, default=None)
        for order, pattern, value in self._patterns:
            if first_named is not None and first_named[0] < order:
                break
            if pattern.matches(path):
                return value
        return None if first_named is None else first_named[1]


class PeftFields:
    """The rank and alpha of modules, and the targets; `problems` has a sentence for each wrong value."""

    def __init__(self, peft: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._budget = StepBudget()
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
        """Rank and alpha of a module: the first pattern that matches, else the default; None for an invalid rank.

        Raises UnsupportedPatternError, as `targets` does, when the budget is used up.
        """
        rank = self._ranks.value(path) or self._rank
        return (None if rank is None else int(rank)), (self._alphas.value(path) or self._alpha or DEFAULT_ALPHA)

    def targets(self, path: str) -> bool:
        """Return True if PEFT would put a LoRA on this module, or if that is unknown."""
        if isinstance(self._exclude, frozenset) and _named(path, self._exclude):
            return False
        if isinstance(self._exclude, Pattern) and self._exclude.matches(path):
            return False
        if isinstance(self._target, Pattern):
            return self._target.matches(path)
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

    def _number(self, subject: str, value: object, *, whole: bool) -> float | None:
        """A positive number, whole for ranks; None, with a sentence in `problems`, for anything else."""
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 < value <= 1e9
            and (not whole or value == int(value))
        ):
            return value
        self.problems.append(f"{subject} is {str(value)[:40]!r}, not a {'whole ' if whole else ''}number above zero.")
        return None

    def _patterns(self, field: str) -> PatternTable:
        values, table = self._peft.get(field) or {}, PatternTable(self._budget)
        if not isinstance(values, dict):
            self.problems.append(f"{field} is not a table of modules.")
            return table
        for key, value in values.items():
            number = self._number(f"{field} of {key[:80]!r}", value, whole=field == "rank_pattern")
            try:
                table.add(key, number or 1)
            except UnsupportedPatternError as error:
                self.problems.append(f"{field} has {key[:80]!r}, which is not read here: {error}; name the modules.")
        return table

    def _modules(self, field: str) -> frozenset[str] | Pattern | None:
        """Names of modules or a regular expression.

        None where modules are unknown: the field is empty, means all linear modules, or is an unsupported expression.
        """
        value = self._peft.get(field)
        if value is None or value == "" or (isinstance(value, str) and value.lower() == "all-linear"):
            return None
        if isinstance(value, str):
            try:
                return Pattern(value, self._budget)
            except UnsupportedPatternError:
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
    """The layer that PEFT reads from a path: the first number after one of `names`, or after any two segments."""
    segments = path.split(".")
    for at, segment in enumerate(segments[:-1]):
        is_layer = at >= 1 and segments[at - 1] in names if names else at >= 2
        if segment.isascii() and segment.isdigit() and is_layer:
            return int(segment)
    return None
