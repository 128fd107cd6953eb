"""What `benchmarks.trust` counts by tests, and how one part of its results takes the place of its own alone."""

from __future__ import annotations

import ast
import json
from argparse import Namespace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.faults import findings
from benchmarks.faults.tested import read, run_tests
from benchmarks.trust import NAMES, parts
from demo import results
from docs.figures import block
from tests.repository import REPOSITORY

REPORT = """
<testsuites><testsuite>
<testcase file="tests/a/test_x.py" classname="tests.a.test_x" name="test_one[a]"/>
<testcase file="tests/a/test_x.py" classname="tests.a.test_x" name="test_one[b]"><failure/></testcase>
<testcase file="tests/a/test_x.py" classname="tests.a.test_x.TestY" name="test_two">
<properties><property name="walked" value="7"/></properties></testcase>
<testcase file="tests/a/test_x.py" classname="tests.a.test_x" name="test_three"><skipped/></testcase>
</testsuite></testsuites>
"""


def test_a_report_is_read_as_pytest_names_tests() -> None:
    found = read(ElementTree.fromstring(REPORT))
    assert found.passed == ("tests/a/test_x.py::test_one[a]", "tests/a/test_x.py::TestY::test_two")
    assert found.failed == ("tests/a/test_x.py::test_one[b]", "tests/a/test_x.py::test_three")
    assert found.counted == {"walked": 7}


@pytest.mark.parametrize(
    ("test", "held"),
    [
        ("tests/a/test_x.py::test_one", False),  # in one of its cases it failed
        ("tests/a/test_x.py::TestY::test_two", True),
        ("tests/a/test_x.py::test_three", False),
        ("tests/a/test_x.py::test_on", False),  # there is none
    ],
)
def test_a_finding_is_mended_while_each_case_of_its_tests_passes(test: str, held: bool) -> None:
    found = read(ElementTree.fromstring(REPORT))
    assert findings.held(test, found.passed, found.failed) is held


def test_each_of_the_fifteen_groups_has_tests_that_are_there() -> None:
    assert [name.split()[0] for name in findings.TESTS] == [str(number) for number in range(1, 16)]
    for tests in findings.TESTS.values():
        assert tests
        for test in tests:
            file, *names = test.split("::")
            body = ast.parse((REPOSITORY / file).read_text()).body
            for name in names:
                body = next(getattr(one, "body", []) for one in body if getattr(one, "name", None) == name)
            assert body, test


def test_without_a_name_nothing_is_run() -> None:
    with pytest.raises(AssertionError, match="all there are"):
        run_tests([])


def test_one_part_takes_the_place_of_its_own_and_says_when(tmp_path: Path) -> None:
    file = tmp_path / "trust.json"
    rows = [{"part": "kills", "kills": 15}, {"part": "headers", "read": 1}]
    figures = {"kills_survived": {"value": 210, "unit": "kills"}, "mutated_headers": {"value": 1, "unit": "files"}}
    results.write(file, name="trust", command="python -m benchmarks.trust", figures=figures, rows=rows)
    before = json.loads(file.read_text())
    results.update(file, figures={"mutated_headers": {"value": 2, "unit": "files"}},
                   rows=[{"part": "headers", "read": 2}], part="headers")  # fmt: skip
    after = json.loads(file.read_text())
    assert after["figures"]["kills_survived"] == {"value": 210, "unit": "kills"}
    assert after["figures"]["mutated_headers"].keys() == {"value", "unit", "date", "commit"}
    assert after["figures"]["mutated_headers"]["value"] == 2
    assert after["rows"] == [rows[0], {"part": "headers", "read": 2}]
    assert {key: after[key] for key in ("date", "commit", "command")} == {
        key: before[key] for key in ("date", "commit", "command")
    }
    shown = block(tmp_path, "trust", "run")
    assert f"commit {after['figures']['mutated_headers']['commit'][:12]} |" in shown
    assert shown.count("commit") == 2  # that of the part, and that of the file


def test_every_part_can_be_asked_for_alone() -> None:
    assert tuple(parts(Namespace())) == NAMES
