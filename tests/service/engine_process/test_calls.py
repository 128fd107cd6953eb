"""The ends of a connection between two processes, without any process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from registry.errors import Unavailable
from service.engine_process.calls import Peer

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
