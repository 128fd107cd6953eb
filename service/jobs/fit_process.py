"""Fits selectors in a child process at lower priority, so that a long fit keeps no stream and no health check waiting.

`FitProcess` is the parent's side, used by `service/jobs.py`; `main` is the child's. They speak as `training.process`
says. The child opens its own database connection and blob store, and is told where by
the parent's first line (a command line would show a database's password to every user of the machine). It stays
alive between fits, because starting one costs seconds of imports, and ends when its standard input does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from registry.catalogue.database import Database
from registry.catalogue.rows import SelectorRow
from registry.errors import Internal, SoupError, Unavailable, as_dict, rebuild
from registry.spec import PoolSpec, SelectorSpec
from training.process import Answers, Child, next_request

log = logging.getLogger("soup.fitting")

NICENESS = 10
TICK_SECONDS = 0.25
Progress = Callable[[int, int, str], None]


class FitProcess:
    """One child that fits, one fit at a time; a cancelled or crashed child is replaced at the next fit."""

    def __init__(self, database: Database, database_url: str, blobs_dir: Path) -> None:
        self._database = database
        self._where = {"database": database_url, "blobs": str(blobs_dir)}
        self._lock = threading.Lock()
        self._child: Child | None = None

    def fit(self, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None, *, progress: Progress) -> SelectorRow:
        """Fit and return the stored selector; raises what the fit or `progress` raised, or Unavailable for a crash."""
        request = {
            "pool": pool.model_dump(mode="json"),
            "spec": spec.model_dump(mode="json"),
            "encoder_digest": encoder_digest,
        }
        while not self._lock.acquire(timeout=TICK_SECONDS):
            progress(0, 1, "waiting for another fit to end")
        try:
            answer = self._ask(request, progress)
        except BaseException:
            self._kill()  # it may be half-way through: what it would answer next is not for the next caller
            raise
        finally:
            self._lock.release()
        if "error" in answer:
            error = answer["error"]
            raise rebuild(error["code"], error["message"], param=error["param"], problems=error["problems"])
        with self._database.read() as catalogue:
            return catalogue.selectors.get(None, answer["selector"])

    def stop(self) -> None:
        """End the child, whatever it does."""
        self._kill()

    def _ask(self, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
        child = self._running(request)
        said: tuple[int, int, str] = (0, 1, "waiting for the fit to start")
        while True:
            try:
                answers = child.answers(TICK_SECONDS)
            except EOFError as ended:
                raise Unavailable(
                    f"The process that fits selectors ended with status {ended.args[0]}; try again."
                ) from ended
            for answer in answers:
                if "progress" not in answer:
                    return answer
                said = tuple(answer["progress"])
            progress(*said)  # also when the child is silent: this is where a cancellation is raised

    def _running(self, request: dict[str, Any]) -> Child:
        """A child that has been given the request: the one there is, or a new one where that has ended."""
        if self._child is not None:
            with suppress(OSError):
                self._child.tell(request)
                return self._child
            self._kill()
        try:
            self._child = Child("service.jobs.fit_process", self._where, request)
        except OSError as error:
            raise Unavailable("The process that fits selectors could not be started; try again.") from error
        return self._child

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def main() -> None:
    """The child: where, then one request a line on standard input; progress and one answer a line on its output."""
    os.nice(NICENESS)
    answers = Answers()
    from registry.blobs import LocalBlobs
    from service.logs import configure_logging

    configure_logging("info")
    where = next_request()
    if where is None:
        return
    database, blobs = Database(where["database"]), LocalBlobs(Path(where["blobs"]))
    while (request := next_request()) is not None:
        answers.send(_answer(request, database, blobs, answers))


def _answer(request: dict[str, Any], database: Database, blobs: Any, answers: Answers) -> dict[str, Any]:
    from pydantic import TypeAdapter

    from registry.fit import fit
    from registry.registry import Registry

    def progress(done: int, total: int, message: str) -> None:
        answers.send({"progress": [done, total, message]})

    try:
        row = fit(
            Registry(database, blobs),
            PoolSpec.model_validate(request["pool"]),
            TypeAdapter[SelectorSpec](SelectorSpec).validate_python(request["spec"]),
            encoder_digest=request["encoder_digest"],
            progress=progress,
        )
    except SoupError as error:
        return {"error": as_dict(error)}
    except BrokenPipeError:  # nobody is left to hear of it
        raise
    except Exception as error:  # the parent must hear of it, whatever it is
        log.exception("a fit failed")
        return {"error": as_dict(Internal(f"The fit failed ({type(error).__name__}); the server's log has the rest."))}
    return {"selector": row.id}


if __name__ == "__main__":
    main()
