"""Processes of this machine as a pool."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from registry.errors import Cancelled
from registry.tasks.process_pool import ProcessPool
from registry.tasks.run import run_tasks
from registry.tasks.task import Task
from tests.registry.tasks import work
from tests.registry.tasks.conformance import Build, PoolTests, pids_in, wait_for_the_end_of
from tests.service.cluster import until

pytestmark = pytest.mark.slow


class TestProcessPool(PoolTests):
    @pytest.fixture
    def build(self) -> Iterator[Build]:
        with ExitStack() as stack:
            yield lambda size: stack.enter_context(ProcessPool(size))


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_task_that_does_not_stop_is_killed_after_the_grace_or_by_a_second_interrupt(
    tmp_path: Path, interrupted: bool
) -> None:
    def stop() -> bool:
        begun = bool(pids_in(tmp_path))
        if begun and interrupted:
            threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        return begun

    raised = KeyboardInterrupt if interrupted else Cancelled
    with pytest.raises(raised), ProcessPool(1, grace=3600 if interrupted else 0.3) as pool:
        list(run_tasks(pool, work.deaf, [Task((tmp_path, "deaf"))], should_stop=stop))
    wait_for_the_end_of(pids_in(tmp_path))


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-m", "tests.registry.tasks.work", str(tmp_path)]) as parent:
        until(lambda: len(pids_in(tmp_path)) == 2, "the tasks")
        parent.kill()
    wait_for_the_end_of(pids_in(tmp_path))


def test_what_tasks_print_is_not_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with ProcessPool(1) as pool:
        ((_, outcome),) = run_tasks(pool, work.leaves, [Task(3)])
        assert isinstance(outcome, SystemExit)
        assert list(run_tasks(pool, work.squared, [Task(4)])) == [(0, (16, None))]
    assert capfd.readouterr().out == ""


def test_threads_are_shared_out() -> None:
    assert [ProcessPool(size).threads(of=5) for size in (1, 2, 8)] == [5, 2, 1]
