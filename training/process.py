"""A child process that answers one request at a time, in JSON lines over its standard input and output: both ends.

`Child` is the parent's end, used for the fits and trainings of a server; `serve` is the child's. A parent that ends,
however it does, closes the child's standard input; a child that works for long looks there (`asked_to_end`) and stops
in good order.
"""

from __future__ import annotations

import json
import logging
import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from registry.errors import Internal, SoupError, Unavailable, as_dict, rebuild
from registry.names import canonical_json
from registry.progress import Progress

log = logging.getLogger("soup.process")
Json = dict[str, Any]
Handle = Callable[[Json, Progress], Json]
"""(request, progress) -> answer, or an exception."""
CHUNK = 65536
TICK_SECONDS = 0.25
NICENESS = 10
"""Of processes that work for a server: streams come first."""
AUTOGROUP = Path("/proc/self/autogroup")
"""The niceness of this process's session, on Linux (sched(7))."""


class Child:
    """A child process that runs `module`: started with the first request, and anew where it has ended since.

    `setup` is its first line; a command line would show a password to every user of the machine.
    `called` begins the sentences about it, and `grace` is how many seconds it may take to end what it is at.
    """

    def __init__(self, module: str, setup: Json, *, called: str = "A process", grace: float = 0.0) -> None:
        self._module = module
        self._setup, self._called, self.grace = setup, called, grace
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._said: tuple[int, int, str] | None = None
        """Progress of the request that it is at, None where it is at none."""

    def ask(self, request: Json, progress: Progress, *, waiting: tuple[int, int, str]) -> Json:
        """What the child answers; raises its error, what `progress` raises, and Unavailable for a crash.

        `progress` is called again and again with what the child said last, at first with `waiting`. A child that is
        not heard to the end is ended: what it would answer next is not for the next caller.
        """
        try:
            self.tell(request, waiting=waiting)
        except OSError as error:
            raise Unavailable(f"{self._called} could not be started; try again.") from error
        try:
            while (answer := self.hear(TICK_SECONDS, progress)) is None:
                pass
        except EOFError as ended:
            raise Unavailable(f"{self._called} ended with status {ended.args[0]}; try again.") from ended
        finally:
            if self._said is not None:
                self.end()
        return answer

    def tell(self, request: Json, *, waiting: tuple[int, int, str]) -> None:
        """Send a request, to `hear` what comes of it; raises OSError where no process can be started."""
        if self._process is not None:
            with suppress(OSError):
                self._send(request)
                self._said = waiting
                return
            self.end()
        self._said = waiting  # until it says something itself: whoever waits can cancel
        self._process = subprocess.Popen(  # noqa: S603 (a module of ours)
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends this one
        )
        try:
            self._send(self._setup)
            self._send(request)
        except OSError:
            self.end()
            raise

    def _send(self, value: Json) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(canonical_json(value) + b"\n")

    def hear(self, seconds: float, progress: Progress) -> Json | None:
        """The answer, None where it does not come within so many seconds; then `progress` hears how far the work is.

        Raises the child's error, and EOFError with its status where it has ended.
        """
        for line in self._lines(seconds):
            if "progress" not in line:
                self._said = None
                if "error" in line:
                    raise rebuild(**line["error"])
                return dict(line["answer"])
            done, total, message = line["progress"]
            self._said = (done, total, message)
        if self._said is not None:
            progress(*self._said)  # also when the child is silent: this is where a cancellation is raised
        return None

    def _lines(self, seconds: float) -> list[Json]:
        assert self._process is not None
        if not _has_news(self, seconds):
            return []
        chunk = os.read(self.fileno(), CHUNK)
        if not chunk:
            raise EOFError(self._process.wait())
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def pid(self) -> int | None:
        """The process's number, None while there is none."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """What to wait on for the next line."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask_to_end(self) -> None:
        """Close its standard input: it is to stop in good order, and nothing more is sent."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """End it: asked first, and killed where it works on after its grace. Nothing where there is no process."""
        process = self._process
        if process is None:
            return
        self.ask_to_end()
        deadline = time.monotonic() + self.grace
        with suppress(EOFError, ValueError):  # it has ended, or its last line is broken
            while (left := deadline - time.monotonic()) > 0:
                self._lines(left)  # read on: it must not wait for a reader
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process, self._pending, self._said = None, b"", None


def _has_news(child: Child, seconds: float) -> bool:
    """Whether it has something to say, waiting so many seconds at most."""
    with selectors.DefaultSelector() as watched:  # select() knows no file beyond the 1,024th, and a server may
        watched.register(child.fileno(), selectors.EVENT_READ)
        return bool(watched.select(seconds))


def lower_priority(niceness: int, *, group: Path = AUTOGROUP) -> None:
    """In a child: come after its parent for the processors; 0 changes nothing.

    Where Linux groups processes by session, niceness counts among those of one session, and a child has its own: there
    the group is told as well. Without that a child shares the processors with its parent half and half.
    """
    os.nice(niceness)
    if niceness:
        with suppress(OSError):  # no groups here, or not ours to change
            group.write_text(str(niceness), encoding="ascii")


def serve(begin: Callable[[Json], Handle], *, failed: str) -> None:
    """The child's end: answer one request after another, until the parent asks no more or is gone.

    `begin` is given the first line, and gives what answers the others; its errors go to the parent, anything that is
    no SoupError in the sentence `failed`, which names the class. Whatever a library prints goes to standard error.
    Progress raises BrokenPipeError where the parent is gone, which ends the child.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(value: Json) -> None:
        out.write(canonical_json(value) + b"\n")

    def progress(done: int, total: int, message: str) -> None:
        send({"progress": [done, total, message]})

    lines = (json.loads(line) for line in sys.stdin.buffer)
    setup = next(lines, None)
    if setup is None:
        return
    handle = begin(setup)
    with suppress(BrokenPipeError):  # nobody is left to hear of it
        for request in lines:
            send(_answer(handle, request, progress, failed))


def _answer(handle: Handle, request: Json, progress: Progress, failed: str) -> Json:
    try:
        return {"answer": handle(request, progress)}
    except SoupError as error:
        return {"error": as_dict(error)}
    except BrokenPipeError:
        raise
    except Exception as error:  # the parent must hear of it, whatever it is
        said = failed.format(type(error).__name__)
        log.exception(said)
        return {"error": as_dict(Internal(said))}


def asked_to_end() -> bool:
    """Whether the parent has closed the child's input, or is gone; for a child whose parent waits for its answer."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready)
