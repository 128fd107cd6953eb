"""The ends of a connection between two processes, and the engine's process before it serves, without any process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from registry.errors import Unavailable
from registry.spec import BlobPlace
from service.engine import EngineLimits
from service.engine_process.calls import Peer
from service.engine_process.child import EngineChild
from service.engine_process.client import ProcessEngine
from service.engine_process.plan import EnginePlan
from service.engine_process.program import EngineProgram

PATIENCE = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.parametrize("message", [b"no pickle", b"cservice.engine\nNoSuchClass\n."])
def test_a_message_that_cannot_be_read_closes_the_connection(
    ends: tuple[Connection, Connection], pool: ThreadPoolExecutor, message: bytes
) -> None:
    ours, theirs = ends
    peer = Peer(ours, calls={}, messages={}, gone="It is gone.")
    serving, call = pool.submit(peer.serve), pool.submit(peer.call, "counters")
    theirs.recv()
    theirs.send_bytes(message)
    with pytest.raises(Unavailable, match="It is gone"):
        call.result(PATIENCE)
    serving.result(PATIENCE)
    assert ours.closed


def test_nobody_waits_longer_for_an_end_that_does_not_read_than_for_its_answer(
    pool: ThreadPoolExecutor, ends: tuple[Connection, Connection]
) -> None:
    ours, theirs = ends
    peer = Peer(ours, calls={}, messages={}, gone="It is gone.")
    serving, submit = pool.submit(peer.serve), pool.submit(peer.call, "submit", bytes(10_000_000))
    assert theirs.poll(PATIENCE)
    with pytest.raises(Unavailable, match="not answered"):
        pool.submit(peer.call, "counters", seconds=0.01).result(PATIENCE)
    peer.tell_soon("cancel", [1])
    assert [theirs.recv()[1] for _ in range(2)] == ["submit", "cancel"], "nobody waits for the other call"
    theirs.close()
    serving.result(PATIENCE)
    for call in (submit, pool.submit(peer.call, "counters")):
        with pytest.raises(Unavailable, match="It is gone"):
            call.result(PATIENCE)


def test_nothing_is_sent_to_a_process_before_it_serves(
    ends: tuple[Connection, Connection], pool: ThreadPoolExecutor
) -> None:
    """Its first message is the plan; callers are refused, and do not wait for the start."""
    ours, theirs = ends
    alive = Lock()
    process: Any = SimpleNamespace(
        pid=1,
        kill=lambda: theirs.close() if alive.acquire(blocking=False) else None,  # two threads kill it
        wait=lambda: 0,
    )
    plan: Any = "the plan"
    source: Any = None
    engine = ProcessEngine(source, plan, child=EngineChild(process, ours))
    loaded = engine.start(["tiny"])
    try:
        assert theirs.recv()[0] == plan
        with pytest.raises(Unavailable, match="is starting"):
            engine.check_admission(None)
        theirs.send((0, "serving", ()))
        theirs.send((0, "loaded", (None,)))
        loaded.result(PATIENCE)
        call = pool.submit(engine.check_admission, None)
        number, name, _ = theirs.recv()
        theirs.send((0, "answer", (number, None, None)))
        assert (name, call.result(PATIENCE)) == ("check_admission", None)
    finally:
        engine.stop()


def test_requests_are_queued_while_the_process_sends_progress(
    ends: tuple[Connection, Connection], tmp_path: Path
) -> None:
    """Up to Python 3.11 the garbage collector runs within allocations, and other threads with it."""
    ours, theirs = ends
    program = EngineProgram(
        ours,
        EnginePlan(bases={}, blobs=BlobPlace(folder=tmp_path), cache=tmp_path, limits=EngineLimits(), log_level="info"),
    )
    tickets: dict[int, Any] = dict.fromkeys(range(8000), SimpleNamespace(rows_done=1))  # a list of them is collected
    program._tickets = tickets
    with collecting(lambda *_: tickets.setdefault(len(tickets), tickets[0])):
        program._flush()
    assert theirs.recv()[:2] == (0, "step")


@contextmanager
def collecting(callback: Callable[..., object]) -> Iterator[None]:
    """Call `callback` at the start and end of every garbage collection."""
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)
