"""A process that runs one piece of work after another, as its parent sends them over a pipe (`Processes`).

`python -m registry.pieces.process FD`. It ends with its parent, however that ends, after what it is at has stopped.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from registry.pieces.contract import Watch, answer_of


def serve(connection: Connection) -> None:
    """Answer until None comes, or the parent is gone; of what pieces share the last is kept."""
    shared: Any = None

    def progress(done: int, total: int, message: str) -> None:
        with suppress(OSError):  # `should_stop` notices that the parent is gone, and the piece ends in good order
            connection.send(("progress", (done, total, message)))

    def should_stop() -> bool:
        return connection.poll(0)  # nothing comes while a piece is at work but the word to end, or the end itself

    with suppress(EOFError, OSError):
        while (asked := connection.recv()) is not None:
            what, value = asked
            if what == "shared":
                shared = value
            else:
                work, given = value
                connection.send(answer_of(work, given, Watch(progress, should_stop, shared)))


def main() -> None:
    """The process; its argument is the number of its end of the pipe."""
    serve(Connection(int(sys.argv[-1])))


if __name__ == "__main__":
    main()
