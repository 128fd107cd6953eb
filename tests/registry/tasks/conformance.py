"""The contract of every pool for `run_tasks`, as tests that a class for each kind of pool inherits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from registry.errors import Cancelled, InvalidParameter
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, TaskLost
from tests.registry.tasks import work
from tests.service.cluster import until

Build = Callable[[int], Pool]


class PoolTests:
    """A fixture `build` makes a pool of a size."""

    def test_each_task_has_its_own_result_and_is_taken_when_it_is_started(self, build: Build) -> None:
        started: list[int] = []

        def tasks() -> Iterator[Task]:
            for number, shared in ((3, "law"), (1, "law"), (2, None)):
                started.append(number)
                yield Task(number, shared)

        pool = build(1)
        outcomes = [(*outcome, len(started)) for outcome in run_tasks(pool, work.squared, tasks())]
        assert outcomes == [(0, (9, "law"), 1), (1, (1, "law"), 2), (2, (4, None), 3)]
        data = b"x" * 2**22
        tasks_again = [Task(n, data) for n in range(7)]
        assert dict(run_tasks(build(2), work.squared, tasks_again)) == {n: (n * n, data) for n in range(7)}
        assert list(run_tasks(pool, work.squared, [])) == []

    def test_what_a_task_raises_is_its_outcome_and_is_not_tried_again(self, build: Build, tmp_path: Path) -> None:
        ((_, error),) = run_tasks(build(1), work.refused, [Task(tmp_path)])
        assert isinstance(error, InvalidParameter)
        assert (str(error), error.param, error.problems) == ("It cannot be had.", "name", ("It is not there.",))
        assert (tmp_path / "refused").read_text() == "started\n"

    def test_tasks_whose_processes_die_are_run_again_and_one_that_always_dies_ends_no_other(
        self, build: Build, tmp_path: Path
    ) -> None:
        pool, deaths = build(2), {"unlucky": 1, "doomed": 9, "lucky": 0, "last": 0}
        tasks = [Task((tmp_path, name, count)) for name, count in deaths.items()]
        results = dict(run_tasks(pool, work.dies, tasks))
        assert results[0] == 2
        assert isinstance(results[1], TaskLost)
        assert len((tmp_path / "doomed").read_text().splitlines()) in (2, 3)  # it may be lost before it begins
        assert {type(results[2]), type(results[3])} == {int}
        assert list(run_tasks(pool, work.squared, [Task(2)])) == [(0, (4, None))]

    def test_running_tasks_are_asked_to_stop_and_the_others_are_not_started(self, build: Build, tmp_path: Path) -> None:
        reports: list[tuple[int, int, int, str]] = []
        tasks = [Task((tmp_path, name)) for name in ("one", "other", "third")]
        pool = build(2)
        with pytest.raises(Cancelled):
            list(
                run_tasks(
                    pool,
                    work.waits,
                    tasks,
                    progress=lambda *report: reports.append(report),
                    should_stop=lambda: {index for index, *_ in reports} == {0, 1},
                )
            )
        assert set(reports) == {(0, 1, 10, "waiting"), (1, 1, 10, "waiting")}
        assert {path.name.split()[0] for path in tmp_path.iterdir()} == {"one", "other"}
        assert {"one stopped", "other stopped"} <= {path.name for path in tmp_path.iterdir()}
        tasks = [Task(1), Task(2)]
        with closing(run_tasks(pool, work.squared, tasks)) as outcomes:  # and where nobody takes more results
            next(outcomes)
        assert list(run_tasks(pool, work.squared, [Task(3)])) == [(0, (9, None))]


def pids_in(folder: Path) -> list[int]:
    """The processes of tasks that noted their start."""
    return [int(path.name.split()[1]) for path in folder.iterdir() if path.name.split()[1].isdecimal()]


def wait_for_the_end_of(pids: list[int]) -> None:
    """Return when these processes have ended; one that nobody waited for counts as ended."""
    import psutil

    def ended() -> bool:
        return all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids if psutil.pid_exists(pid))

    assert pids
    until(ended, "the end of the processes")
