"""A child process that is spoken to in JSON lines: asked, cancelled, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.errors import Cancelled
from registry.progress import silent
from training.process import Child

pytestmark = pytest.mark.slow

WAITING = (0, 1, "waiting")


@pytest.fixture
def child() -> Iterator[Child]:
    found = Child("tests.training.silent_child", {})
    yield found
    found.end()


def stop_at_once(_done: int, _total: int, _message: str) -> None:
    raise Cancelled("enough")


def killed(child: Child) -> None:
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_child_that_died_between_two_requests_is_started_again(child: Child) -> None:
    assert child.ask({"seconds": 0}, silent, waiting=WAITING) == {"slept": 0}
    before = child.pid
    killed(child)
    assert child.ask({"seconds": 0}, silent, waiting=WAITING) == {"slept": 0}
    assert child.pid != before


def test_whoever_waits_for_a_child_that_was_started_again_can_cancel(child: Child) -> None:
    assert child.ask({"seconds": 0}, silent, waiting=WAITING) == {"slept": 0}
    killed(child)
    with pytest.raises(Cancelled):
        child.ask({"seconds": 20}, stop_at_once, waiting=WAITING)
    assert child.pid is None, "what it would answer next is not for the next caller"


def test_a_child_comes_after_its_parent_among_processes_and_among_sessions(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from training.process import lower_priority"
    program += "; lower_priority(7, group=Path(sys.argv[1])); print(os.nice(0))"
    for group in (tmp_path / "group", tmp_path / "none" / "group"):  # the second is a system without groups
        ran = subprocess.run([sys.executable, "-c", program, str(group)], capture_output=True, text=True, check=True)
        assert int(ran.stdout) == os.nice(0) + 7
    assert (tmp_path / "group").read_text() == "7"
