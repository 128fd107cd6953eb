"""Starts the child process of an engine. Imports no torch: `soup serve` and its child then import it side by side."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from registry.interpreter import module_command

PROGRAM = "service.engine_process.program"


@dataclass(frozen=True)
class EngineChild:
    """A process of `program`, and the connection that it reads its plan from. It ends when that is closed."""

    process: subprocess.Popen[bytes]
    connection: Connection


def start_child() -> EngineChild:
    """Start the process of an engine; raises OSError where that is not possible."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603 (a module of ours)
                module_command(PROGRAM, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is for the server's address
                start_new_session=True,  # Ctrl-C is for the server, which then ends this one
            )
        except OSError:
            ours.close()
            raise
    return EngineChild(process, Connection(ours.detach()))


@contextmanager
def engine_child() -> Iterator[EngineChild]:
    """The process of an engine while open; it is killed at the end, also where no engine has used it."""
    child = start_child()
    try:
        yield child
    finally:
        child.connection.close()
        child.process.kill()
        child.process.wait()
