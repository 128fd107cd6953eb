"""Whether a server can do its work: database and blobs can be used, and every base model held computes a token.

An answer is repeated for some seconds (`SOUP_READY_SECONDS`), so that probes cost next to nothing; it names no cause
beyond a word, since it is given without a key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from registry.base_model import BaseText
from registry.errors import Busy, Unavailable
from service.engine import GenerateRequest, SamplingParams, ScoreRequest
from service.http.schemas.health import Ready
from service.operations.storage import SchemaWatch
from service.parts import Services

OUTGROWN = "is of a later version"
"""Said of a database that was migrated beyond what this version can use."""
WAITS = "loads at its next use"
"""Said of a base model that has no place in memory now, which is no fault."""
NEVER = "exceeds the memory budget"
"""Said of one that will never have: the operator's log says so too, and the others are served."""
LOADING = "is loading"
STUCK = "computes no token"
BUSY = "is busy"
"""Said of one that computes for others: load is no fault, and a server that is taken out for it loads the next."""
AWAY = "has no replica on Ray that answers"
"""Said of one that is generated elsewhere: all servers of the cluster miss its replicas alike, and each still has the
registry, uploads, scores and pages to give."""
TOKEN_SECONDS = 30.0
"""How long one token, or one pass, may take before the engine counts as stuck."""


class Readiness:
    """The last answer of /readyz and when it was found; one caller at a time looks."""

    def __init__(self, *, clock: Any = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: tuple[float, Ready] | None = None
        self._schema = SchemaWatch()

    @property
    def last(self) -> tuple[float, Ready] | None:
        """The last answer, and how many seconds ago it was found; None where nobody asked yet."""
        found = self._found
        return None if found is None else (self._clock() - found[0], found[1])

    def of(self, services: Services) -> Ready:
        """The last answer where it is fresh, else a new one. While one caller looks, others get the last.

        Not ready, and not remembered, while base models are loaded at the start.
        """
        if services.engine.preloading:
            return Ready(status="not_ready", checks={f"base/{base_id}": LOADING for base_id in services.bases})
        found = self._found
        fresh = found is not None and self._clock() - found[0] < services.settings.ready_seconds
        if found is not None and (fresh or self._lock.locked()):
            return found[1]
        with self._lock:
            if self._found is not found and self._found is not None:
                return self._found[1]  # somebody looked while this one waited
            ready = _look(services, self._schema)
            self._found = (self._clock(), ready)
            return ready


def _look(services: Services, schema: SchemaWatch) -> Ready:
    waiting = {f"base/{base_id}": WAITS if services.bases[base_id].fits else NEVER for base_id in services.bases}
    checks = {"database": _database(services, schema), "blobs": services.registry.blobs.probe() or "ok", **waiting}
    for base_id in _tried(services):
        checks[f"base/{base_id}"] = _token(services, base_id)
    healthy = all(state in ("ok", WAITS, NEVER, BUSY, AWAY) for state in checks.values())
    return Ready(status="ready" if healthy else "not_ready", checks=checks)


def _tried(services: Services) -> Iterable[str]:
    """The base models that have to compute a token: all, or under a memory budget those held now.

    A probe would make room for the others by dropping what people use. Those held are tried in the order of their
    last use, so that the probe does not change it.
    """
    if services.settings.memory_bytes is None:
        return services.bases
    return services.engine.bases_held()


def _database(services: Services, schema: SchemaWatch) -> str:
    try:
        with services.registry.database.read() as catalogue:
            catalogue.keys.by_secret("")
        return OUTGROWN if schema.is_outgrown(services.registry.database) else "ok"
    except Exception:
        return "does not answer"


def _token(services: Services, base_id: str) -> str:
    base, engine = services.bases[base_id].text, services.engine
    away = services.settings.ray_address is not None and base.shape.kind == "causal"
    silent = AWAY if away else STUCK
    try:
        _one_token(services, base)
    except Busy:  # nobody's request gets in, so it is enough that some come out
        return BUSY if engine.seconds_since_pass() < TOKEN_SECONDS else silent
    except TimeoutError:
        return BUSY if engine.seconds_since_pass(base_id) < TOKEN_SECONDS else silent
    except Unavailable:
        return silent
    except Exception:
        return STUCK
    return "ok"


def _one_token(services: Services, base: BaseText) -> None:
    """Compute one token, of an encoder one vector, blocking; raises TimeoutError, or what the engine raises."""
    start = (base.bos_id or 0,)
    asked: GenerateRequest | ScoreRequest
    if base.shape.kind == "encoder":
        asked = ScoreRequest(base.entry.id, (start,), pooled=frozenset({0}), bos=False)
    else:
        asked = GenerateRequest(base.entry.id, start, params=SamplingParams(max_tokens=1, temperature=0.0))
    ticket = services.engine.submit(asked)
    try:
        ticket.result(TOKEN_SECONDS)
    finally:
        ticket.cancel()
