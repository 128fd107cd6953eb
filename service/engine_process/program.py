"""The program of the engine's process: computes what its server sends, until that closes the connection or is gone.

One message a step has the tokens of all streams; it is sent by the engine's thread. `client` is the server's side.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from registry.adapters.loadable import Tensors
from registry.adapters.weights import load_tensors
from registry.errors import SoupError, Unavailable
from service.engine import Delta, Ticket
from service.engine.progress import as_soup_error, without_frames
from service.engine_process.calls import Peer
from service.engine_process.host import EngineHost
from service.engine_process.plan import EnginePlan
from service.engine_process.wire import Ended, SentRequest
from service.observability.logs import configure_logging

GONE = "The server of this engine is gone."


class EngineProgram:
    """The engine of a plan behind a connection; raises what `EngineHost` raises."""

    def __init__(self, connection: Connection, plan: EnginePlan) -> None:
        self._host = EngineHost(plan)
        engine = self._host.engine
        self.peer = Peer(
            connection,
            calls={
                "submit": self._submit,
                "check_admission": engine.check_admission,
                "counters": engine.counters,
                "loaded_bases": engine.loaded_bases,
                "is_packed": engine.is_packed,
                "seconds_since_pass": engine.seconds_since_pass,
                "stop": lambda drain, patience: engine.stop(drain=drain, patience=patience),
            },
            messages={"cancel": self._cancel},
            gone=GONE,
        )
        self._tickets: dict[int, Ticket] = {}
        self._rows_done: dict[int, int] = {}
        self._deltas: deque[tuple[int, Delta]] = deque()
        self._flushing = threading.Lock()

    def run(self, base_ids: Sequence[str]) -> None:
        """Load these base models and compute until the connection is closed."""
        with suppress(Unavailable):
            self.peer.tell("serving")  # until then the server sends only the plan
        self._host.engine.start(base_ids).add_done_callback(self._tell_loaded)
        self.peer.serve()

    def _tell_loaded(self, loaded: Future[None]) -> None:
        error = loaded.exception()
        assert error is None or isinstance(error, Exception)
        with suppress(Unavailable):
            self.peer.tell("loaded", None if error is None else without_frames(as_soup_error(error)))

    def _submit(self, sent: Sequence[tuple[int, SentRequest]]) -> None:
        """Queue all of these requests by number, or raise and queue none."""
        requests = [
            self._host.receive(
                request,
                load=self._load,
                on_token=partial(self._put, number),
                on_step=self._flush,
                on_end=partial(self._on_end, number),
            )
            for number, request in sent
        ]
        tickets = self._host.engine.submit_all(requests)
        self._tickets |= {number: ticket for (number, _), ticket in zip(sent, tickets, strict=True)}
        for (number, _), ticket in zip(sent, tickets, strict=True):
            ticket.add_done_callback(partial(self._on_done, number))

    def _load(self, digest: str) -> Tensors:
        """The tensors of an adapter that is not stored, from the server."""
        return load_tensors(self.peer.call("tensors", digest, seconds=None))

    def _cancel(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            ticket = self._tickets.get(number)
            if ticket is not None:
                ticket.cancel()

    # --- in the engine's thread -------------------------------------------------------------------

    def _put(self, number: int, delta: Delta) -> None:
        self._deltas.append((number, delta))

    def _flush(self) -> None:
        """Send the tokens since the last message, and how many texts of each request are scored."""
        with self._flushing, suppress(Unavailable):
            tickets = self._tickets.copy()  # a list of items may run the garbage collector, and so other threads
            rows = {number: ticket.rows_done for number, ticket in tickets.items()}
            changed = {number: done for number, done in rows.items() if done != self._rows_done.get(number, 0)}
            self._rows_done = rows
            deltas = [self._deltas.popleft() for _ in range(len(self._deltas))]
            if deltas or changed:
                self.peer.tell("step", deltas, changed)

    def _on_end(self, number: int, *_: int) -> None:
        ticket = self._tickets.get(number)
        if ticket is not None and ticket.cancelled():
            self._finish(number, ticket)

    def _on_done(self, number: int, ticket: Ticket) -> None:
        """Send the end, unless the engine has not dropped a cancelled request yet: `_on_end` comes then."""
        if not ticket.cancelled() or ticket.timeline is not None:
            self._finish(number, ticket)

    def _finish(self, number: int, ticket: Ticket) -> None:
        """Send the end of a request once, after its tokens."""
        self._flush()
        if self._tickets.pop(number, None) is not None:
            with suppress(Unavailable):
                self.peer.tell("ended", number, Ended.of(ticket))


def main() -> None:
    """Run the engine's process; its argument is the descriptor of the socket to its server."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server ends it, once its requests are answered
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    try:
        plan, base_ids = connection.recv()
    except EOFError:  # the server has ended before it had a plan
        return
    configure_logging(plan.log_level)
    try:
        program = EngineProgram(connection, plan)
    except SoupError as error:
        connection.send((0, "loaded", (error,)))
    else:
        program.run(base_ids)
    os._exit(0)  # threads may be computing


if __name__ == "__main__":
    main()
