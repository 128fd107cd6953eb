"""Fits selectors in a child process at lower priority, so that a long fit keeps no stream and no health check waiting.

`FitProcess` is the parent's side, used by `service/jobs.py`; `main` is the child's. They speak JSON lines over the
child's standard input and output. The child opens its own database connection and blob store, and is told where by
the parent: it reads no environment. It stays alive between fits, because starting one costs seconds of imports.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from registry.catalogue.database import Database
from registry.catalogue.rows import SelectorRow

from registry.errors import Internal, SoupError, as_dict, rebuild
from registry.names import canonical_json
from registry.spec import PoolSpec, SelectorSpec

NICENESS = 10
TICK_SECONDS = 0.25
Progress = Callable[[int, int, str], None]


class FitProcess:
    """One child that fits, one fit at a time; a cancelled or crashed child is replaced at the next fit."""

    def __init__(self, database: Database, database_url: str, blobs_dir: Path) -> None:
        self._database = database
        self._where = {"database": database_url, "blobs": str(blobs_dir)}
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def fit(self, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None, *, progress: Progress) -> SelectorRow:
        """Fit and return the stored selector; raises what the fit raised, Cancelled, or Internal for a crash."""
        request = {
            "pool": pool.model_dump(mode="json"),
            "spec": spec.model_dump(mode="json"),
            "encoder_digest": encoder_digest,
        }
        with self._lock:
            progress(0, 1, "waiting for the fit to start")
            try:
                answer = self._ask(request, progress)
            except BaseException:
                self._kill()  # it may be half-way through: what it would answer next is not for the next caller
                raise
        if "error" in answer:
            error = answer["error"]
            raise rebuild(error["code"], error["message"], param=error["param"], problems=error["problems"])
        with self._database.read() as catalogue:
            return catalogue.selectors.get(None, answer["selector"])

    def stop(self) -> None:
        """End the child, whatever it does."""
        self._kill()

    def _ask(self, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
        child = self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(canonical_json(request) + b"\n")
        said: tuple[int, int, str] = (0, 1, "fitting")
        pending = b""
        while True:
            ready, _, _ = select.select([child.stdout], [], [], TICK_SECONDS)
            chunk = os.read(child.stdout.fileno(), 65536) if ready else None
            if chunk == b"":
                raise Internal(f"The process that fits selectors ended with status {child.wait()}.")
            *lines, pending = (pending + (chunk or b"")).split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if "progress" not in answer:
                    return answer
                said = tuple(answer["progress"])
            progress(*said)  # also when the child is silent: this is where a cancellation is raised

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._kill()
            command = [sys.executable, "-m", "service.fitting", json.dumps(self._where)]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 - ours
        return self._child

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def main() -> None:
    """The child: one JSON request a line on standard input, progress and one answer a line on standard output."""
    os.nice(NICENESS)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print of a library must not look like an answer
    from registry.blobs import LocalBlobs

    where = json.loads(sys.argv[1])
    database, blobs = Database(where["database"]), LocalBlobs(Path(where["blobs"]), sweep=False)
    for line in sys.stdin.buffer:
        answers.write(canonical_json(_answer(json.loads(line), database, blobs, answers.write)) + b"\n")


def _answer(request: dict[str, Any], database: Database, blobs: Any, write: Callable[[bytes], Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    from registry.fit import fit

    def progress(done: int, total: int, message: str) -> None:
        write(canonical_json({"progress": [done, total, message]}) + b"\n")

    try:
        row = fit(
            PoolSpec.model_validate(request["pool"]),
            TypeAdapter[SelectorSpec](SelectorSpec).validate_python(request["spec"]),
            encoder_digest=request["encoder_digest"],
            database=database,
            blobs=blobs,
            progress=progress,
        )
    except SoupError as error:
        return {"error": as_dict(error)}
    except Exception as error:  # the parent must hear of it, whatever it is
        return {"error": as_dict(Internal(f"The fit failed: {type(error).__name__}: {error}"))}
    return {"selector": row.id}


if __name__ == "__main__":
    main()
