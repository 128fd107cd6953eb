"""What tests of ours say, run as `pytest` runs them: which passed, and what they counted (`record_property`)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from demo.results import ROOT
from registry.errors import Internal


@dataclass(frozen=True)
class Tested:
    """Tests as pytest names them, `file.py::Class::test[case]`: those that passed, the others, and what was counted."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    counted: dict[str, int]


def run_tests(tests: Sequence[str]) -> Tested:
    """Run these files, folders or tests in a process of their own; raises Internal where none could be run."""
    assert tests, "without a name pytest runs all there are"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode > 1 or not report.exists():
            raise Internal(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return read(ElementTree.parse(report).getroot())


def read(report: ElementTree.Element) -> Tested:
    """A report of pytest's."""
    passed, failed, counted = list[str](), list[str](), dict[str, int]()
    for case in report.iter("testcase"):
        name = name_of(case)
        bad = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        (failed if bad else passed).append(name)
        for one in case.iter("property"):
            counted[str(one.get("name"))] = int(str(one.get("value")))
    return Tested(tuple(passed), tuple(failed), counted)


def name_of(case: ElementTree.Element) -> str:
    """`file.py::Class::test[case]`; the report has the class behind the name of the module."""
    file = str(case.get("file"))
    module = file.removesuffix(".py").replace("/", ".")
    classes = str(case.get("classname")).removeprefix(module).strip(".").split(".")
    return "::".join([file, *filter(None, classes), str(case.get("name"))])
