"""What an attack on the registry found, in the 15 groups of its issue, and the tests that fail where one comes back.

A group is mended while each of its tests is there and passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.faults.tested import run_tests

TESTS: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Group:
    """One group: what was found, and those of its tests that did not pass, or are not there."""

    found: str
    tests: int
    lacking: tuple[str, ...]


def check_groups() -> list[Group]:
    """Every group, after its tests have run."""
    outcome = run_tests(sorted({test for tests in TESTS.values() for test in tests}))
    return [
        Group(found, len(tests), tuple(test for test in tests if not held(test, outcome.passed, outcome.failed)))
        for found, tests in TESTS.items()
    ]


def held(test: str, passed: tuple[str, ...], failed: tuple[str, ...]) -> bool:
    """Whether a test passed in each of its cases, of which there is at least one."""

    def cases(ran: tuple[str, ...]) -> list[str]:
        return [one for one in ran if one == test or one.startswith(f"{test}[")]

    return bool(cases(passed)) and not cases(failed)
