"""Pieces of work as tasks of a Ray cluster that this process is connected to: `registry.pieces.Workplace` elsewhere.

Made by `registry.pieces.places`. A task is a generator that says how far its piece is, and at last what it ended with.
Ray is told to repeat nothing: which pieces are tried again is decided here, as it is of processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray import exceptions

from registry.errors import Cancelled, Internal, Unavailable, rebuild
from registry.pieces.contract import (
    GRACE_SECONDS,
    RETRIES,
    TICK_SECONDS,
    Ended,
    Piece,
    PieceProgress,
    Watch,
    Work,
    answer_of,
    given_up,
    nobody,
)
from registry.pieces.waiting import Try, Waiting
from registry.ray_cluster import check_cluster

R = TypeVar("R")
LOST = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
)
"""How Ray says that a task's process or machine is gone, or what it had said with it."""
SILENCE_SECONDS = 60.0
"""After how long without a word from any piece the head is asked whether it is there, and has a machine for one."""


class OnRay:
    """The cluster that this process is connected to, a piece a task of so many processor cores.

    By default so many at once as the cluster has room for when they are run. `tell` hears what somebody who waits
    should know. Every machine needs this version of the package, and what it reads that pieces do not carry.
    """

    shares_files = False

    def __init__(
        self,
        *,
        cores: int = 1,
        at_once: int | None = None,
        retries: int = RETRIES,
        grace: float = GRACE_SECONDS,
        silence: float = SILENCE_SECONDS,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._cores, self._at_once, self._retries, self._grace = cores, at_once, retries, grace
        self._silence, self._tell = silence, tell

    def threads(self, *, of: int) -> int:  # noqa: ARG002 (of this machine)
        """As many as it has cores."""
        return self._cores

    def run(
        self,
        pieces: Iterable[Piece[R]],
        *,
        progress: PieceProgress = nobody,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Ended[R]]:
        """As `Workplace.run`.

        Raises Unavailable where no machine of the cluster has a piece's cores."""
        at_once = self._at_once or self._room()
        task = ray.remote(num_cpus=self._cores, max_retries=0, num_returns="streaming")(_run)
        waiting, shared = Waiting(pieces), _Shared()
        busy: dict[Any, Try] = {}
        unfit: dict[str, Exception] = {}
        heard = time.monotonic()
        try:
            while True:
                while len(busy) < at_once and (one := waiting.take()) is not None:
                    named, piece = task.options(name=one.piece.name, **_elsewhere(unfit)), one.piece
                    busy[named.remote(piece.work, piece.given, shared.ref(piece.shared))] = one
                if not busy:
                    return
                if should_stop is not None and should_stop():
                    raise Cancelled("The work was cancelled.")
                with_news, _ = ray.wait(list(busy), num_returns=1, timeout=TICK_SECONDS)
                if with_news:
                    heard = time.monotonic()
                else:  # what may run on none of the machines that are left waits in Ray's queue without a word
                    self._check_left(unfit)
                if time.monotonic() - heard > self._silence:
                    check_cluster(ray.get_runtime_context().gcs_address)
                    self._room()
                    heard = time.monotonic()
                for said in with_news:
                    one = busy[said]
                    try:
                        ended = _hear(said, one.piece.name, progress)
                    except _Unfit as error:
                        del busy[said]
                        unfit[error.node] = error.problem
                        self._check_left(unfit)
                        waiting.again(one)
                        continue
                    except LOST as error:
                        del busy[said]
                        one = replace(one, lost=one.lost + 1)
                        if one.lost > self._retries:
                            yield given_up(one.piece.name, _lost(error), one.lost)
                        else:
                            waiting.again(one)
                        continue
                    if ended is not None:
                        del busy[said]
                        yield replace(ended, lost=one.lost)
        finally:
            _end_all(list(busy), self._grace, self._tell)

    def _check_left(self, unfit: Mapping[str, Exception]) -> None:
        """Raises the last problem of unfit machines where no other one has the cores for a piece."""
        if not unfit:
            return
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        cores = [one["Resources"].get("CPU", 0.0) for one in nodes if one["Alive"] and one["NodeID"] not in unfit]
        if not any(some >= self._cores for some in cores):
            raise list(unfit.values())[-1] from None

    def _room(self) -> int:
        """How many pieces the machines have cores for."""
        found = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        room = sum(int(cores // self._cores) for cores in found)
        if not room:
            raise Unavailable(
                f"No machine of the Ray cluster has {self._cores} processor cores for a piece of work: its "
                f"{len(found)} machines have {', '.join(f'{cores:g}' for cores in found)}."
            )
        return room


class _Unfit(Exception):
    """A piece could not be run on a node, for a problem of that machine."""

    def __init__(self, node: str, problem: Exception) -> None:
        super().__init__(node)
        self.node, self.problem = node, problem


class _Shared:
    """What pieces of a run share, each put into the cluster once: machines get it from there, and from each other."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def ref(self, value: Any) -> Any:
        """What a task is given for it: a ref, which Ray has replaced with the value when the task begins."""
        if value is None:
            return None
        if id(value) not in self._known:
            self._known[id(value)] = (value, ray.put(value))  # held, so that no other object gets its id
        return self._known[id(value)][1]


def _elsewhere(unfit: Collection[str]) -> dict[str, Any]:
    """Options of a task that runs on none of these nodes."""
    return {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(unfit))})"}} if unfit else {}


def _hear(said: Any, name: str, progress: PieceProgress) -> Ended[Any] | None:
    """What the piece ended with, None where it has said how far it is; raises what LOST has."""
    try:
        what, value = ray.get(next(said))
    except StopIteration:
        return Ended(name, problem=Internal("Its task ended without a result."))
    except exceptions.TaskCancelledError:
        raise Cancelled(f"The task of {name} was cancelled by another.") from None
    except LOST:
        raise
    except exceptions.RayError as error:
        first = str(error).strip().splitlines()[-1]
        return Ended(
            name,
            problem=Unavailable(
                f"Its task could not be run ({first}): every machine of the cluster needs this version of adaptersoup "
                "with the extra 'train'."
            ),
        )
    if what == "progress":
        progress(name, *value)
        return None
    if what == "machine":
        node, problem = value
        raise _Unfit(node, rebuild(**problem))
    return Ended(name, result=value) if what == "result" else Ended(name, problem=rebuild(**value))


def _lost(error: Exception) -> str:
    return f"The process or machine that it ran on is gone ({type(error).__name__})."


def _end_all(tasks: list[Any], grace: float, tell: Callable[[str], object]) -> None:
    """End tasks: all are asked first, and those killed that work on after their grace.

    Where the wait is interrupted, they are killed when this process leaves the cluster.
    """
    for said in tasks:
        ray.cancel(said)
    if not tasks:
        return
    ends = {said.completed(): said for said in tasks}
    tell(f"Waiting for tasks on Ray to stop, {len(tasks)} of them, {grace:.0f} s at most; Ctrl-C ends them at once.")
    _, left = ray.wait(list(ends), num_returns=len(ends), timeout=grace, fetch_local=False)
    for end in left:
        ray.cancel(ends[end], force=True)


# --- in a process of the cluster --------------------------------------------------------------------


def _run(work: Work[Any], given: Any, shared: Any) -> Iterator[tuple[str, Any]]:
    """Run a piece in a thread, and say how far it is until it has ended; a task that is cancelled asks it to stop."""
    stop, ended = threading.Event(), threading.Event()
    where: list[tuple[int, int, str]] = []
    answers: list[tuple[str, Any]] = []

    def progress(done: int, total: int, message: str) -> None:
        where[:] = [(done, total, message)]

    def answer() -> None:
        try:
            answers.append(answer_of(work, given, Watch(progress, stop.is_set, shared)))
        finally:
            ended.set()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        while not ended.wait(TICK_SECONDS):
            with suppress(IndexError):
                yield "progress", where.pop()
        what, value = answers[0]
        yield what, (ray.get_runtime_context().get_node_id(), value) if what == "machine" else value
    finally:
        stop.set()
        thread.join()
