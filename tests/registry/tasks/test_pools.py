"""Pools of tasks: a Ray cluster of several nodes, also as one dies in a sweep, and processes of this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptersoup import Store
from adaptersoup.cli.app import run as soup
from registry.errors import Cancelled, Unavailable
from registry.tasks.process_pool import ProcessPool
from registry.tasks.ray_connection import LOOPBACK, prepare_environment, ray_connection
from registry.tasks.run import run_tasks
from registry.tasks.task import Task
from tests.killed_node import kill_node
from tests.registry.tasks import work
from tests.registry.tasks.conformance import Build, PoolTests, pids_in, wait_for_the_end_of
from tests.registry.tasks.matrix import SETTINGS, stock, stored_evaluations
from tests.service.cluster import until
from training import sweep

pytestmark = pytest.mark.slow

TOKEN = "token-of-the-tests-" + "0" * 32
LINES = [json.dumps({"text": f"The judge of court {i} held that contract {i * 7} was void."}) for i in range(60)]


class Nodes:
    """Machines of one processor core each, the first of which has the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._about = {"node_ip_address": LOOPBACK, "object_store_memory": 100_000_000}
        head = {**self._about, "include_dashboard": False, "num_cpus": 1}
        self._cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self._nodes: list[Any] = []
        self.address = str(self._cluster.address)

    def add(self, cores: int = 1) -> None:
        """One more."""
        self._nodes.append(self._cluster.add_node(wait=False, **self._about | {"num_cpus": cores}))
        self._cluster.wait_for_nodes()

    def kill(self) -> None:
        """The last one, at once."""
        kill_node(self._cluster, self._nodes.pop())

    @property
    def count(self) -> int:
        return 1 + len(self._nodes)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.setenv("RAY_health_check_period_ms", "500")  # 3000 by default: a dead node is missed after five
        prepare_environment()
        cluster = Nodes()
        try:
            cluster.add()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="class")
def connected(nodes: Nodes) -> Iterator[None]:
    with ray_connection(nodes.address):
        yield


@pytest.mark.long
class TestRayPool(PoolTests):
    @pytest.fixture
    def build(self, connected: None) -> Build:
        from registry.tasks.ray_pool import RayPool

        return lambda size: RayPool(at_once=size)

    def test_a_machine_that_is_unfit_is_left_out(self, build: Build, tmp_path: Path) -> None:
        assert list(run_tasks(build(1), work.full, [Task(tmp_path)])) == [(0, 2)]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, tiny_base_dir: Path) -> Callable[..., list[str]]:
    folder = tmp_path_factory.mktemp("texts") / "law"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(LINES[:40]))
    (folder / "valid.jsonl").write_text("\n".join(LINES[40:]))

    def arguments(out: Path, *more: str, base: Path = tiny_base_dir) -> list[str]:
        return [
            "train",
            "sweep",
            str(folder),
            "--base-folder",
            str(base),
            "--out",
            str(out),
            "--steps",
            "400",
            "--lr",
            "1e-2,1e-3",
            "--seed",
            "1",
            "--batch",
            "2",
            "--block",
            "32",
            "--bottleneck",
            "4",
            *more,
        ]

    return arguments


@contextmanager
def one_thread() -> Iterator[None]:
    """Have PyTorch use one thread, the default of a task on Ray."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def files_in(out: Path) -> dict[str, dict[str, bytes]]:
    return {cell.name: {file.name: file.read_bytes() for file in cell.iterdir()} for cell in out.glob("[!.]*")}


@pytest.mark.long
def test_a_sweep_of_which_a_node_dies_makes_the_same_bytes_and_prints_nothing_but_json(
    nodes: Nodes,
    command: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The node dies when each of the two has begun a cell; the cell begins again on the node that is left."""
    begun: set[int] = set()

    def killing(pool: Any, function: Any, tasks: Any, *, progress: Any, should_stop: Any) -> Any:
        def watched(index: int, done: int, total: int, message: str) -> None:
            progress(index, done, total, message)
            begun.update([index] if done else [])
            if len(begun) == 2 and nodes.count == 2:
                nodes.kill()
                (tmp_path / "killed").touch()

        delayed = work.HeldOnTheWay(function, tmp_path / "killed")
        return run_tasks(pool, delayed, tasks, progress=watched, should_stop=should_stop)

    monkeypatch.setattr(sweep, "run_tasks", killing)
    assert soup(command(tmp_path / "out", "--on", f"ray={nodes.address}", "--json")) == 0
    assert (nodes.count, begun) == (1, {0, 1})
    assert [(row["name"], row["state"]) for row in json.loads(capsys.readouterr().out)["data"]] == [
        ("law-lr0.01-seed1", "trained"),
        ("law-lr0.001-seed1", "trained"),
    ]
    with one_thread():
        assert soup(command(tmp_path / "here")) == 0
    assert files_in(tmp_path / "out") == files_in(tmp_path / "here")
    shutil.rmtree(tmp_path / "out" / "law-lr0.001-seed1")
    with one_thread():
        assert soup(command(tmp_path / "out")) == 0  # what was trained on Ray and what is trained here are one sweep
    assert files_in(tmp_path / "out") == files_in(tmp_path / "here")


@pytest.mark.long
def test_a_base_model_that_is_another_on_every_machine_ends_the_sweep(
    nodes: Nodes,
    command: Callable[..., list[str]],
    tiny_base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = partial(sweep.CellTask)
    monkeypatch.setattr(sweep, "CellTask", lambda entry, _, *more: task(entry, "sha256:" + "0" * 64, *more))
    assert soup(command(tmp_path / "out", "--on", f"ray={nodes.address}")) == 1
    errors = capsys.readouterr().err
    assert f"On {platform.node()}: The base model in {tiny_base_dir} has fingerprint" in errors
    assert "every machine needs the same files." in errors


@pytest.mark.parametrize(
    ("on", "message"),
    [
        (("--on", "spark"), "--on takes ray, or ray=HOST:PORT"),
        (("--on", "ray="), "--on takes ray, or ray=HOST:PORT"),
        (("--cores", "2", "--parallel", "2"), "--cores is of tasks on Ray"),
    ],
)
def test_what_is_no_pool_is_one_sentence(
    command: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on: tuple[str, ...],
    message: str,
) -> None:
    assert soup(command(tmp_path / "out", *on)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unavailable, match=r"pip install 'adaptersoup\[ray\]'"), ray_connection(None):
        pass


@pytest.mark.long
def test_a_pool_of_adapters_is_evaluated_to_the_figures_of_the_stores_engine(
    nodes: Nodes, tiny_base_dir: Path, tmp_path: Path
) -> None:
    stock(tmp_path / "here", tiny_base_dir)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    with Store(tmp_path / "here", **SETTINGS) as here, Store(tmp_path / "there", **SETTINGS) as there:
        report = there.evaluate_pool(passages=10, on=f"ray={nodes.address}")
        assert report == here.evaluate_pool(passages=10)
        assert (report.computed, report.failed) == (9, {})
        assert stored_evaluations(there) == stored_evaluations(here)


@pytest.mark.long
def test_a_cluster_without_a_machine_of_so_many_cores_says_so_from_the_start_or_when_it_is_gone(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.add(cores=2)
    node_count = nodes.count - 1

    def kill(*_: object) -> None:
        if nodes.count > node_count:
            nodes.kill()

    with ray_connection(nodes.address):
        from registry.tasks.ray_pool import RayPool

        pool = RayPool(cores=2, silence=1.0)
        with pytest.raises(Unavailable, match="No machine of the Ray cluster has 2 processor cores"):
            list(run_tasks(pool, work.waits, [Task((tmp_path, "one"))], progress=kill))
        with pytest.raises(Unavailable, match="has 64 processor cores for a task: its 1 machines have 1"):
            RayPool(cores=64)


# --- processes of this machine --------------------------------------------------------------------


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
