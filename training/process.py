"""A child process that is spoken to in JSON lines over its standard input and output: both ends of that.

`Child` is the parent's end, used by whoever has work done beside itself: fits and trainings of the server, the cells
of a grid. `Answers` is the child's. A parent that ends, however it does, closes the child's standard input; a child
that works for long looks there (`asked_to_end`) and stops in good order.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from registry.names import canonical_json

Json = dict[str, Any]
CHUNK = 65536


class Child:
    """One child, running `module`. Its first lines are sent at once; raises OSError where it cannot be started.

    What it must know goes over its input: a command line would show a password to every user of the machine.
    """

    def __init__(self, module: str, *first: Json) -> None:
        self._process = subprocess.Popen(  # noqa: S603 (a module of ours)
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends this one
        )
        self._pending = b""
        try:
            for value in first:
                self.tell(value)
        except OSError:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def tell(self, value: Json) -> None:
        """Send a line; raises OSError where the child has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(canonical_json(value) + b"\n")

    def fileno(self) -> int:
        """What to wait on for the next answer."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def answers(self, seconds: float) -> list[Json]:
        """The lines that came within so many seconds; raises EOFError with its status where the child has ended."""
        if not wait_for([self], seconds):
            return []
        chunk = os.read(self.fileno(), CHUNK)
        if not chunk:
            raise EOFError(self._process.wait())
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def ask_to_end(self) -> None:
        """Close its standard input: it is to stop in good order, and nothing more is sent."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def end(self, *, grace: float = 0.0) -> None:
        """End it: asked first, and killed where it works on after `grace` seconds. Again is nothing."""
        self.ask_to_end()
        deadline = time.monotonic() + grace
        with suppress(EOFError, ValueError):  # it has ended, or was ended before
            while (left := deadline - time.monotonic()) > 0:
                self.answers(left)  # read on: it must not wait for a reader
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Answers:
    """The child's end: lines for the parent, while whatever a library prints goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(self, value: Json) -> None:
        """Send a line; raises BrokenPipeError where nobody is left to hear of it."""
        self._out.write(canonical_json(value) + b"\n")

    def progress(self, done: int, total: int, message: str) -> None:
        """Say how far the work is; a parent that is gone is noticed by `asked_to_end`."""
        with suppress(BrokenPipeError):
            self.send({"progress": [done, total, message]})


def next_request() -> Json | None:
    """The next line of the parent, None at the end of them."""
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line else None


def asked_to_end() -> bool:
    """Whether the parent has closed the child's input, or is gone; for a child whose parent waits for its answer."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready)


def wait_for(children: Sequence[Child], seconds: float) -> list[Child]:
    """Those of the children that have something to say, waiting so many seconds at most."""
    with selectors.DefaultSelector() as watched:  # select() knows no file beyond the 1,024th, and a server may
        for child in children:
            watched.register(child.fileno(), selectors.EVENT_READ, child)
        return [key.data for key, _ in watched.select(seconds)]
