"""What `make quick` leaves out, and that a quick test which starts a process or a server is told to say so."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import quick
from tests.repository import REPOSITORY

STARTS = [
    "import subprocess; subprocess.run(['true'])",
    "import os; os.system('true')",
    "import os; os.fork()",
    "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "import multiprocessing; multiprocessing.get_context('spawn').Process(target=print).start()",
    "import socket; socket.socket().bind(('127.0.0.1', 0))",
]


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_quick_tests_start_no_process_and_no_server(start: str) -> None:
    for before, code in (("", 0), ("quick.refuse_processes(); ", 1)):
        program = f"from tests import quick; {before}{start}"
        done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert (quick.SENTENCE in done.stderr) == bool(code)


@pytest.mark.parametrize(
    ("fixtures", "parameters", "slow"),
    [
        (["tmp_path"], {}, False), (["tmp_path", "world"], {}, True), (["postgres"], {}, True),
        (["databases"], {"databases": "postgresql"}, True), (["databases"], {"databases": "sqlite"}, False),
    ],
)  # fmt: skip
def test_a_test_is_slow_by_what_it_uses(fixtures: list[str], parameters: dict[str, str], slow: bool) -> None:
    marks: list[pytest.MarkDecorator] = []
    item = SimpleNamespace(fixturenames=fixtures, callspec=SimpleNamespace(params=parameters), add_marker=marks.append)
    quick.mark([item])
    assert [mark.name for mark in marks] == (["slow"] if slow else [])
