"""`/healthz`, `/readyz` and `/metrics`: is the process alive, can it do its work, what has it done.

Liveness asks nothing of the engine or the database, so that a busy server is not killed. Readiness computes one
real token with every base model it holds and repeats that answer for some seconds (`SOUP_READY_SECONDS`), so that
probes cost next to nothing; it names no cause beyond a word, since it answers without a key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from registry.errors import Busy
from service.http.auth import needs
from service.http.resolve import resolve_model
from service.http.schemas.health import Alive, Ready
from service.http.state import State
from service.http.streaming import one_token
from service.keys import NOBODY_IN_PARTICULAR
from service.parts import Parts

router = APIRouter(tags=["health"])
_admin = needs("admin")
WAITS = "loads at its next use"
"""Said of a base model that has no place in memory now, which is no fault."""
NEVER = "exceeds the memory budget"
"""Said of one that will never have: the operator's log says so too, and the others are served."""
TOKEN_SECONDS = 30.0
"""How long one token may take before the engine counts as stuck."""


async def _may_read_metrics(request: Request, parts: State) -> None:
    if not parts.settings.metrics_public:
        await _admin(request)


@router.get("/healthz")
async def healthz() -> Alive:
    """The process answers. Needs no key."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Ready}})
def readyz(request: Request, response: Response, parts: State) -> Ready:
    """Whether the database answers and every base model that is held computes a token. Needs no key."""
    readiness: Readiness = request.app.state.readiness
    ready = readiness.of(parts)
    if ready.status != "ready":
        response.status_code = 503
    return ready


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(request: Request, _: Annotated[None, Depends(_may_read_metrics)]) -> Response:
    """Prometheus metrics; scope admin unless `SOUP_METRICS_PUBLIC` is set."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)


class Readiness:
    """The last answer of /readyz and when it was found; one caller at a time looks."""

    def __init__(self, *, clock: Any = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: tuple[float, Ready] | None = None

    def of(self, parts: Parts) -> Ready:
        """The last answer where it is fresh, else a new one. While one caller looks, others get the last."""
        found = self._found
        fresh = found is not None and self._clock() - found[0] < parts.settings.ready_seconds
        if found is not None and (fresh or self._lock.locked()):
            return found[1]
        with self._lock:
            if self._found is not found and self._found is not None:
                return self._found[1]  # somebody looked while this one waited
            ready = _look(parts)
            self._found = (self._clock(), ready)
            return ready


def _look(parts: Parts) -> Ready:
    waiting = {f"base/{base_id}": WAITS if parts.bases.fits(base_id) else NEVER for base_id in parts.bases.entries}
    checks = {"database": _database(parts), **waiting}
    for base_id in _tried(parts):
        checks[f"base/{base_id}"] = _token(parts, base_id)
    healthy = all(state in ("ok", WAITS, NEVER) for state in checks.values())
    return Ready(status="ready" if healthy else "not_ready", checks=checks)


def _tried(parts: Parts) -> Iterable[str]:
    """The base models that have to compute a token: all, or under a memory budget those held now.

    A probe would make room for the others by dropping what people use. Those held are tried in the order of their
    last use, so that the probe does not change it.
    """
    if parts.settings.memory_bytes is None:
        return parts.bases.entries
    return parts.engine.bases_held()


def _database(parts: Parts) -> str:
    try:
        with parts.registry.database.read() as catalogue:
            catalogue.keys.by_secret("")
    except Exception:
        return "does not answer"
    return "ok"


def _token(parts: Parts, base_id: str) -> str:
    try:
        one_token(parts, resolve_model(parts, NOBODY_IN_PARTICULAR, f"base/{base_id}"), timeout=TOKEN_SECONDS)
    except Busy:
        return "has a full queue"
    except Exception:
        return "computes no token"
    return "ok"
