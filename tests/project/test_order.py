"""The longest files of tests come first, and all of those that are named are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.order import LONGEST, longest_first
from tests.repository import REPOSITORY


def test_every_file_that_is_named_is_there_once() -> None:
    assert [name for name in LONGEST if not (REPOSITORY / "tests" / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_named_files_come_first_and_all_else_stays_in_its_order() -> None:
    files = ["training/test_z.py", LONGEST[1], "project/test_a.py", LONGEST[0]]
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{file}::test_{n}") for n in (2, 1) for file in files]
    longest_first(items)
    found = [item.nodeid.removeprefix("tests/") for item in items]
    assert found[:4] == [f"{LONGEST[0]}::test_2", f"{LONGEST[0]}::test_1", f"{LONGEST[1]}::test_2",
                         f"{LONGEST[1]}::test_1"]  # fmt: skip
    rest = [f"{file}::test_{n}" for n in (2, 1) for file in (files[0], files[2])]
    assert found[4:] == rest
