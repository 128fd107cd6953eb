"""Fit selectors in a child process at lower priority, so that a long fit delays no stream and no health check.

`FitProcess` is the parent's side, used by the job runner; `main` is the child's. The child opens its own database
connection and blob store. It stays alive between fits, because a start costs seconds of imports, and ends when its
standard input does.
"""

from __future__ import annotations

import threading

from pydantic import TypeAdapter

from registry.blobs import open_blobs
from registry.catalogue.database import Database
from registry.catalogue.rows import SelectorRow
from registry.context import Registry
from registry.progress import Progress
from registry.select.fit import fit
from registry.spec import BlobPlace, PoolSpec, SelectorSpec
from service.observability.logs import logged
from service.settings import Settings
from training.process import CLEANUP_SECONDS, NICENESS, TICK_SECONDS, Child, Handle, Json, lower_priority, serve


class FitProcess:
    """One child that fits, one fit at a time; a cancelled or crashed child is replaced at the next fit."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        setup = {
            "database": settings.database,
            "blobs": settings.blob_place.model_dump(mode="json"),
            "log_level": settings.log_level,
        }
        self._child = Child("service.jobs.fit_process", setup, called="The process that fits selectors")
        self._lock = threading.Lock()

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
            answer = self._child.ask(request, progress, waiting=(0, 1, "waiting for the fit to start"))
        finally:
            self._lock.release()
        with self._database.read() as catalogue:
            return catalogue.selectors.get(None, answer["selector"])

    def stop(self) -> None:
        """Kill the child, even during a fit. A thread that waits for the database meanwhile cleans up afterwards."""
        self._child.kill()
        if self._lock.acquire(timeout=CLEANUP_SECONDS):
            self._child.end()
            self._lock.release()


def begin(setup: Json) -> Handle:
    """Return the handler of requests to fit, on the database and the blobs of the first line."""
    blobs = open_blobs(BlobPlace.model_validate(setup["blobs"]), make=False)
    registry = Registry(Database(setup["database"]), blobs)
    parse_spec = TypeAdapter[SelectorSpec](SelectorSpec).validate_python

    def handle(request: Json, progress: Progress) -> Json:
        row = fit(
            registry,
            PoolSpec.model_validate(request["pool"]),
            parse_spec(request["spec"]),
            encoder_digest=request["encoder_digest"],
            progress=progress,
        )
        return {"selector": row.id}

    return handle


def main() -> None:
    """Run the child process."""
    lower_priority(NICENESS)
    serve(logged(begin), failed="The fit failed ({}); the server's log has the rest.")


if __name__ == "__main__":
    main()
