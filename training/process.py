"""Both ends of a child process that answers one request at a time, in JSON lines over standard input and output.

`Child` is the parent's end, used for the fits and trainings of a server; `serve` is the child's. A parent that ends in
any way closes the child's standard input; a long-running child polls for that (`should_end`) and stops cleanly.
"""

from __future__ import annotations

import errno
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
from registry.interpreter import module_command
from registry.names import canonical_json
from registry.progress import Progress

log = logging.getLogger("soup.process")
Json = dict[str, Any]
Handle = Callable[[Json, Progress], Json]
"""(request, progress) -> answer, or an exception."""
CHUNK = 65536
TICK_SECONDS = 0.25
NICENESS = 10
"""Niceness of a server's child processes: streams come first."""
AUTOGROUP = Path("/proc/self/autogroup")
"""The niceness of this process's session, on Linux (sched(7))."""
CLEANUP_SECONDS = 1.0
"""How long a thread may take to notice that the child it asked was killed, and to clean up after it."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a disk that takes no more files, which the operator can mend."""


class Child:
    """A child process that runs `module`: started at the first request, and again if it has ended since.

    `setup` is its first line of input; a command line would show a password to every user of the machine. `called` is
    its name at the start of error messages, `grace` the seconds it may take to finish when it is ended.
    """

    def __init__(self, module: str, setup: Json, *, called: str = "A process", grace: float = 0.0) -> None:
        self._module = module
        self._setup, self._called, self.grace = setup, called, grace
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._unsent = memoryview(b"")
        """Input that the child has not read yet: a pipe holds 64 KiB, and a child that starts reads nothing."""
        self._progress: tuple[int, int, str] | None = None
        """Progress of the current request; None without one."""

    def ask(self, request: Json, progress: Progress, *, waiting: tuple[int, int, str]) -> Json:
        """Send a request and return the answer; raises its error, what `progress` raises, Unavailable for a crash.

        `progress` is called repeatedly with the child's last progress, at first with `waiting`. If the answer is not
        received, the child is ended, so that its late answer cannot reach the next caller.
        """
        try:
            self.send(request, waiting=waiting)
        except OSError as error:
            raise Unavailable(f"{self._called} could not be started; try again.") from error
        try:
            while (answer := self.poll(TICK_SECONDS, progress)) is None:
                pass
        except EOFError as ended:
            raise Unavailable(f"{self._called} ended with status {ended.args[0]}; try again.") from ended
        finally:
            if self._progress is not None:
                self.end()
        return answer

    def send(self, request: Json, *, waiting: tuple[int, int, str]) -> None:
        """Send a request, whose answer `poll` returns; raises OSError if no process can be started."""
        if self._process is not None:
            with suppress(OSError):
                self._write(_line(request))
                self._progress = waiting
                return
            self.end()
        self._progress = waiting  # until the child reports progress, so that the caller can cancel
        self._process = subprocess.Popen(  # noqa: S603 (a module of ours)
            module_command(self._module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends this one
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        try:
            self._write(_line(self._setup) + _line(request))
        except OSError:
            self.end()
            raise

    def _write(self, data: bytes | memoryview) -> None:
        """Write as much as the pipe takes now; `poll` writes the rest."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._unsent = memoryview(data)[self._process.stdin.write(data) or 0 :]

    def poll(self, seconds: float, progress: Progress) -> Json | None:
        """Wait for the answer; None if it does not come within `seconds`, after a call of `progress`.

        Raises the child's error, and EOFError with its exit status if it has ended.
        """
        for line in self._lines(seconds):
            if "progress" not in line:
                self._progress = None
                if "error" in line:
                    raise rebuild(**line["error"])
                return dict(line["answer"])
            done, total, message = line["progress"]
            self._progress = (done, total, message)
        if self._progress is not None:
            progress(*self._progress)  # also when the child is silent: this is where a cancellation is raised
        return None

    def _lines(self, seconds: float) -> list[Json]:
        assert self._process is not None
        if not self._has_output(seconds):
            return []
        chunk = os.read(self.fileno(), CHUNK)
        if not chunk:
            raise EOFError(self._process.wait())
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def _has_output(self, seconds: float) -> bool:
        """Return True if the child has output, after at most `seconds`. Writes input for which there is room."""
        assert self._process is not None
        assert self._process.stdin is not None
        with selectors.DefaultSelector() as watched:  # select() is limited to descriptors below 1,024
            watched.register(self.fileno(), selectors.EVENT_READ)
            if self._unsent:
                watched.register(self._process.stdin, selectors.EVENT_WRITE)
            ready = watched.select(seconds)
        if self._unsent:
            with suppress(OSError):  # the child has ended: its output says so
                self._write(self._unsent)
        return any(key.events == selectors.EVENT_READ for key, _ in ready)

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """The file descriptor to wait on for the next line."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def kill(self) -> None:
        """Kill it, from any thread. A thread that waits for its answer gets Unavailable; otherwise call `end` too."""
        process = self._process
        if process is not None:
            process.kill()

    def ask_to_end(self) -> None:
        """Close its standard input, which asks it to stop."""
        if self._process is not None and self._process.stdin is not None:
            self._unsent = memoryview(b"")
            with suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """Ask it to stop, and kill it if it still runs after its grace. Does nothing without a process."""
        process = self._process
        if process is None:
            return
        self.ask_to_end()
        deadline = time.monotonic() + self.grace
        with suppress(EOFError, ValueError):  # it has ended, or its last line is broken
            while (seconds := deadline - time.monotonic()) > 0:
                self._lines(seconds)  # read on, or the child blocks on a full pipe
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process, self._pending, self._progress = None, b"", None


def _line(value: Json) -> bytes:
    return canonical_json(value) + b"\n"


def lower_priority(niceness: int, *, group: Path = AUTOGROUP) -> None:
    """Lower the priority of this child process below its parent's.

    If Linux schedules by session (autogroup), niceness counts within a session, and a child has its own session. The
    niceness of its group is therefore set too; otherwise the child would get half of the processor time.
    """
    os.nice(niceness)
    with suppress(OSError):  # no autogroups, or no permission
        group.write_text(str(niceness), encoding="ascii")


def serve(begin: Callable[[Json], Handle], *, failed: str) -> None:
    """Answer one request after another until the parent closes the input or is gone: the child's end.

    `begin` gets the first line and returns the handler of the others. The handler's errors are sent to the parent, one
    that is no SoupError as an Internal with the sentence `failed`, which names its class, but a full or read-only disk
    as Unavailable. Standard output of libraries goes to standard error. Progress raises BrokenPipeError if the parent
    is gone, which ends the child.
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
    with suppress(BrokenPipeError):  # the parent is gone
        for request in lines:
            send(_answer(handle, request, progress, failed))


def _answer(handle: Handle, request: Json, progress: Progress, failed: str) -> Json:
    try:
        return {"answer": handle(request, progress)}
    except SoupError as error:
        return {"error": as_dict(error)}
    except BrokenPipeError:
        raise
    except Exception as error:  # any error has to reach the parent
        message = failed.format(type(error).__name__)
        log.exception(message)
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            return {"error": as_dict(Unavailable(f"A file cannot be written on the server ({error.strerror})."))}
        return {"error": as_dict(Internal(message))}


def should_end() -> bool:
    """Return True if the parent has closed the child's input or is gone; call it only while a request is handled."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready)
