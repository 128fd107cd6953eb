"""The ends of a connection between two processes, and the engine's process before it serves, without any process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from registry.errors import Unavailable
from service.engine_process.calls import Peer
from service.engine_process.child import EngineChild
from service.engine_process.client import ProcessEngine

PATIENCE = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
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
