"""A Ray cluster of several nodes as a place of work, and a sweep on it of which a node dies in the middle."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptersoup import Store
from benchmarks.soups import greedy
from registry.errors import Unavailable
from registry.pieces import Piece, PieceProgress, Watch
from registry.ray_cluster import LOOPBACK, prepare_environment, ray_cluster
from service.cli.app import run as soup
from service.cli.verbs.train import stopping
from service.cli.verbs.train.progress_table import Table
from tests.killed_node import kill_node
from tests.pieces import work
from tests.pieces.bank import DOMAINS, alone, bank, by_server
from tests.pieces.contract import Build, WorkplaceTests, assert_gone
from tests.pieces.matrix import SETTINGS, known, stock
from tests.service.cluster import until
from training import parallel_sweep
from training.sweep import CHECKPOINTS

pytestmark = pytest.mark.slow

TOKEN = "token-of-the-tests-" + "0" * 32
STORE_BYTES = 100_000_000
LINES = [json.dumps({"text": f"The judge of court {i} held that contract {i * 7} was void."}) for i in range(60)]


class Nodes:
    """Machines of one processor core each, the first of which has the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        about = {"node_ip_address": LOOPBACK, "object_store_memory": STORE_BYTES}
        self._about = {**about, "num_cpus": 1}
        head = {**self._about, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self._nodes: list[Any] = []
        self.address = str(self._cluster.address)

    def add(self, cores: int = 1) -> None:
        """One more."""
        self._nodes.append(self._cluster.add_node(wait=False, **self._about | {"num_cpus": cores}))

    def wait(self) -> None:
        self._cluster.wait_for_nodes()

    def kill(self) -> None:
        """The last one, at once."""
        kill_node(self._cluster, self._nodes.pop())

    @property
    def head(self) -> str:
        """How Ray names the first one."""
        return str(self._cluster.head_node.node_id)

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
        found = Nodes()
        try:
            found.add()
            found.wait()
            yield found
        finally:
            found.close()


@pytest.fixture(scope="class")
def connected(nodes: Nodes) -> Iterator[None]:
    with ray_cluster(nodes.address):
        yield


class TestOnRay(WorkplaceTests):
    @pytest.fixture
    def build(self, connected: None) -> Build:
        from registry.pieces.on_ray import OnRay

        return partial(OnRay, grace=30.0)

    @pytest.mark.parametrize("unfit", [work.unfit, work.full_here])
    def test_a_machine_that_is_unfit_is_left_out(
        self, build: Build, tmp_path: Path, unfit: Callable[[Path, Watch], str]
    ) -> None:
        (ended,) = build(at_once=1).run([Piece("one", unfit, tmp_path)])
        assert (ended.value(), ended.lost) == ("elsewhere", 0)


def test_who_waits_for_tasks_that_stop_is_told_so_and_a_second_interrupt_ends_them_at_once(
    nodes: Nodes, tmp_path: Path
) -> None:
    from registry.pieces.on_ray import OnRay

    told: list[str] = []

    def interrupt(said: str) -> None:
        told.append(said)
        threading.Thread(target=signal.pthread_kill, args=(threading.main_thread().ident, signal.SIGINT)).start()

    def begun() -> bool:
        return any(tmp_path.iterdir())

    with pytest.raises(KeyboardInterrupt), ray_cluster(nodes.address):
        place = OnRay(grace=3600.0, tell=interrupt)
        list(place.run([Piece("deaf", work.deaf, (tmp_path, "deaf"))], should_stop=begun))
    (path,) = tmp_path.iterdir()
    assert_gone(int(path.name.split()[1]))
    assert told == ["Waiting for tasks on Ray to stop, 1 of them, 3600 s at most; Ctrl-C ends them at once."]


def test_what_becomes_of_machines_is_logged_and_not_printed(
    nodes: Nodes, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Ray prints it to standard output, in the midst of the JSON of a command."""
    with ray_cluster(nodes.address):
        from ray._private import utils, worker

        utils.push_error_to_driver(worker.global_worker, "node_died", "The node is gone.")
        until(lambda: "Ray: The node is gone." in caplog.text, "the news")
    assert capsys.readouterr().out == ""


def test_more_cores_than_any_machine_has_is_said(nodes: Nodes) -> None:
    from registry.pieces.on_ray import OnRay

    with ray_cluster(nodes.address), pytest.raises(Unavailable, match=r"No machine .* has 64 processor cores"):
        list(OnRay(cores=64).run([Piece("square", work.squared, 2)]))


Sweep = Callable[..., list[str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, tiny_base_dir: Path) -> Sweep:
    folder = tmp_path_factory.mktemp("texts") / "law"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(LINES[:40]))
    (folder / "valid.jsonl").write_text("\n".join(LINES[40:]))

    def arguments(out: Path, *more: str, base: Path = tiny_base_dir) -> list[str]:
        return ["train", "sweep", str(folder), "--base-folder", str(base), "--out", str(out), "--steps", "400", "--lr",
                "1e-2,1e-3", "--seed", "1", "--batch", "2", "--block", "32", "--bottleneck", "4", *more]  # fmt: skip

    return arguments


@pytest.fixture(scope="module")
def without_ray(command: Sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sweep makes in this process, on one thread as a cell on Ray has."""
    out = tmp_path_factory.mktemp("without") / "out"
    with one_thread():
        assert soup(command(out)) == 0
    return out


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def table(out: Path) -> dict[str, dict[str, bytes]]:
    return {cell.name: {file.name: file.read_bytes() for file in cell.iterdir()} for cell in out.glob("[!.]*")}


def killing_one_of_two(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, killed: Path) -> list[int]:
    """Kill the last of two nodes when the pieces that are run next are both on their way, which wait for that.

    Gives how often each piece was lost, as they end; `killed` is a path where nothing is.
    """
    from registry.pieces.on_ray import OnRay

    assert nodes.count == 2
    seen: set[str] = set()
    lost: list[int] = []
    run = OnRay.run

    def counted(self: OnRay, pieces: Iterable[Piece[Any]], *, progress: PieceProgress, **more: Any) -> Iterator[Any]:
        def watched(name: str, done: int, total: int, message: str) -> None:
            progress(name, done, total, message)
            if done:
                seen.add(name)
            if len(seen) == 2 and nodes.count == 2:
                nodes.kill()
                killed.touch()

        held = (replace(one, work=work.HeldOnTheWay(one.work, killed)) for one in pieces)
        for ended in run(self, held, progress=watched, **more):
            lost.append(ended.lost)
            yield ended

    monkeypatch.setattr(OnRay, "run", counted)
    return lost


def test_a_sweep_of_which_a_node_dies_makes_the_same_bytes(
    nodes: Nodes, command: Sweep, without_ray: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The node that goes has begun a cell by then, which begins again on the one that is left."""
    lost = killing_one_of_two(nodes, monkeypatch, tmp_path / "killed")
    assert soup(command(tmp_path / "out", "--on", f"ray={nodes.address}", "--json")) == 0
    assert nodes.count == 1
    rows = json.loads(capsys.readouterr().out)["data"]
    assert [(row["name"], row["state"]) for row in rows] == [
        ("law-lr0.01-seed1", "trained"), ("law-lr0.001-seed1", "trained"),
    ]  # fmt: skip
    assert sorted(lost) == [0, 1]
    assert table(tmp_path / "out") == table(without_ray)
    assert not (tmp_path / "out" / CHECKPOINTS).exists()


def test_a_sweep_that_is_stopped_says_how_to_go_on_and_does(
    nodes: Nodes, command: Sweep, without_ray: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What was made on Ray and what is made here afterwards are one sweep."""
    out, seen = tmp_path / "out", []
    shutil.copytree(without_ray / "law-lr0.01-seed1", out / "law-lr0.01-seed1")
    with monkeypatch.context() as patch:
        patch.setattr(Table, "at", lambda *said: seen.append(said))
        patch.setattr(stopping, "stoppable", partial(nullcontext, lambda: bool(seen)))
        assert soup(command(out, "--on", f"ray={nodes.address}")) == 1
    assert "Run the same command again to go on." in capsys.readouterr().err
    assert list(table(out)) == ["law-lr0.01-seed1"]
    with one_thread():
        assert soup(command(out, "--json")) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)["data"]] == ["kept", "trained"]
    assert table(out) == table(without_ray)


def test_a_base_model_that_is_another_on_the_machine_is_refused(
    nodes: Nodes, command: Sweep, tiny_base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    base = shutil.copytree(tiny_base_dir, tmp_path / "base")
    sent = parallel_sweep.sent

    def then_gone(*given: Any) -> Any:
        shutil.rmtree(base, ignore_errors=True)
        return sent(*given)

    monkeypatch.setattr(parallel_sweep, "sent", then_gone)
    assert soup(command(tmp_path / "out", "--on", f"ray={nodes.address}", base=base)) == 1
    said = capsys.readouterr().err
    assert f"On {platform.node()}: " in said
    assert "Every machine that has a part in it needs the base model at the same path." in said


@pytest.mark.parametrize(
    ("on", "said"),
    [
        (("--on", "spark"), "--on takes ray, or ray=HOST:PORT"),
        (("--on", "ray="), "--on takes ray, or ray=HOST:PORT"),
        (("--cores", "2", "--parallel", "2"), "--cores is of pieces on Ray"),
        (("--on", "ray=nowhere"), "'nowhere' is not the address of a Ray cluster"),
        (("--on", "ray=127.0.0.1:9"), "No Ray cluster answers at 127.0.0.1:9"),
    ],
)
def test_a_place_that_is_none_is_one_sentence(
    nodes: Nodes, command: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str], on: tuple[str, ...], said: str,
) -> None:  # fmt: skip
    assert soup(command(tmp_path / "out", *on)) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_token_is_one_sentence(
    nodes: Nodes, command: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN[:-1] + "1")
    assert soup(command(tmp_path / "out", "--on", f"ray={nodes.address}")) == 1
    assert f"The Ray cluster at {nodes.address} refuses this token" in capsys.readouterr().err


def test_without_ray_the_sentence_names_the_extra(
    command: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert soup(command(tmp_path / "out", "--on", "ray")) == 1
    assert "pip install 'adaptersoup[ray]'" in capsys.readouterr().err


def test_a_pool_is_evaluated_to_the_figures_of_the_stores_engine(
    nodes: Nodes, tiny_base_dir: Path, tmp_path: Path
) -> None:
    stock(tmp_path / "here", tiny_base_dir)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    with Store(tmp_path / "here", **SETTINGS) as here, Store(tmp_path / "there", **SETTINGS) as there:
        found = there.evaluate_pool(passages=10, on=f"ray={nodes.address}")
        assert found == here.evaluate_pool(passages=10)
        assert (found.computed, found.failed) == (9, {})
        assert known(there) == known(here)


def test_a_greedy_search_whose_node_dies_has_the_servers_figures(
    nodes: Nodes, tiny_base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two domains at once; that on the node that goes is searched anew on the other."""
    from registry.pieces.on_ray import OnRay

    nodes.add()
    nodes.wait()
    lost = killing_one_of_two(nodes, monkeypatch, tmp_path / "killed")
    with bank(tmp_path, tiny_base_dir) as setting, ray_cluster(nodes.address):
        found = greedy.searched(OnRay(at_once=2), setting, alone(setting))
        wanted = {domain: by_server(setting, domain) for domain in DOMAINS}
    assert nodes.count == 1
    assert sorted(lost) == [0, 1]
    assert {domain: nll.tolist() for domain, nll in found.items()} == {
        domain: one.nll.tolist() for domain, one in wanted.items()
    }


def test_a_cluster_that_loses_the_only_node_with_room_says_so(nodes: Nodes, tmp_path: Path) -> None:
    from registry.pieces.on_ray import OnRay

    nodes.add(cores=2)
    nodes.wait()
    others = nodes.count - 1

    def kill(*_: object) -> None:
        if nodes.count > others:
            nodes.kill()

    with ray_cluster(nodes.address), pytest.raises(Unavailable, match="No machine of the Ray cluster has 2 processor"):
        list(OnRay(cores=2, silence=1.0, grace=1.0).run([Piece("one", work.waits, (tmp_path, "one"))], progress=kill))


def test_a_cluster_that_loses_the_only_node_that_is_fit_says_what_is_wrong_with_the_other(nodes: Nodes) -> None:
    """The piece that was lost may run on none by then."""
    from registry.pieces.on_ray import OnRay

    nodes.add()
    nodes.wait()

    def kill(*_: object) -> None:
        if nodes.count == 2:
            nodes.kill()

    pieces = [Piece(name, work.unfit_there, nodes.head) for name in ("one", "two")]
    with ray_cluster(nodes.address), pytest.raises(Unavailable, match="On this machine it is not there"):
        list(OnRay(at_once=2).run(pieces, progress=kill))
