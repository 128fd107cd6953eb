"""Readiness of a server: database and blobs are usable, and every base model in memory computes a token.

An answer is repeated for some seconds (`SOUP_READY_SECONDS`), so that probes cost next to nothing. It gives no details,
since it needs no key.
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
from service.operations.storage import is_outgrown
from service.services import Services

OUTGROWN = "is of a later version"
"""State of a database whose schema is too new for this version."""
UNLOADED = "loads at its next use"
"""State of a base model that is not in memory now, which is no fault."""
TOO_LARGE = "exceeds the memory budget"
"""State of a base model that never fits in memory: the log has a warning, and the other base models are served."""
LOADING = "is loading"
STUCK = "computes no token"
BUSY = "is busy"
"""State of a base model under load: no fault, since removing the server would move the load to the next one."""
AWAY = "has no replica on Ray that answers"
"""State of a base model without replicas on Ray: no fault of this server, which still serves registry, uploads, scores
and pages. All servers of the cluster lack the replicas."""
TOKEN_SECONDS = 30.0
"""Seconds that one token or one pass may take before the engine counts as stuck."""


class Readiness:
    """The last answer of /readyz and its time; one caller at a time computes a new one."""

    def __init__(self, *, clock: Any = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, Ready] | None = None

    @property
    def last(self) -> tuple[float, Ready] | None:
        """The age of the last answer in seconds and the answer; None before the first one."""
        last = self._last
        return None if last is None else (self._clock() - last[0], last[1])

    def of(self, services: Services) -> Ready:
        """Return the last answer if it is recent, else a new one. While one caller computes it, others get the last.

        While base models are loaded at the start the answer is not ready, and not stored.
        """
        if services.engine.preloading:
            return Ready(status="not_ready", checks={f"base/{base_id}": LOADING for base_id in services.bases})
        last = self._last
        is_recent = last is not None and self._clock() - last[0] < services.settings.ready_seconds
        if last is not None and (is_recent or self._lock.locked()):
            return last[1]
        with self._lock:
            if self._last is not last and self._last is not None:
                return self._last[1]  # computed while this caller waited
            ready = _check(services)
            self._last = (self._clock(), ready)
            return ready


def _check(services: Services) -> Ready:
    waiting = {f"base/{base_id}": UNLOADED if services.bases[base_id].fits else TOO_LARGE for base_id in services.bases}
    checks = {"database": _database(services), "blobs": services.registry.blobs.probe() or "ok", **waiting}
    for base_id in _probed_bases(services):
        checks[f"base/{base_id}"] = _token(services, base_id)
    healthy = all(state in ("ok", UNLOADED, TOO_LARGE, BUSY, AWAY) for state in checks.values())
    return Ready(status="ready" if healthy else "not_ready", checks=checks)


def _probed_bases(services: Services) -> Iterable[str]:
    """Return the base models that have to compute a token: those in memory, and those that replicas on Ray serve.

    A probe of the others would load them, and might evict base models that are in use. The probe does not change the
    order of last use, in which it goes through the base models in memory. If all were loaded at the start and none can
    be evicted, all are probed, so that an engine that has ended is not ready.
    """
    settings = services.settings
    if settings.ray_address is not None:
        remote = [base_id for base_id, base in services.bases.items() if base.entry.kind == "causal"]
        return dict.fromkeys([*remote, *services.engine.loaded_bases()])
    return services.bases if settings.preload and settings.memory_bytes is None else services.engine.loaded_bases()


def _database(services: Services) -> str:
    try:
        with services.registry.database.read() as catalogue:
            catalogue.keys.by_secret("")
        return OUTGROWN if is_outgrown(services.registry.database) else "ok"
    except Exception:
        return "does not answer"


def _token(services: Services, base_id: str) -> str:
    base, engine = services.bases[base_id].text, services.engine
    away = services.settings.ray_address is not None and base.shape.kind == "causal"
    silent = AWAY if away else STUCK
    try:
        _compute_token(services, base)
    except Busy:  # no request is admitted, so it is enough that some are finished
        return BUSY if engine.seconds_since_pass() < TOKEN_SECONDS else silent
    except TimeoutError:
        return BUSY if engine.seconds_since_pass(base_id) < TOKEN_SECONDS else silent
    except Unavailable:
        return silent
    except Exception:
        return STUCK
    return "ok"


def _compute_token(services: Services, base: BaseText) -> None:
    """Compute one token, or one vector for an encoder, blocking; raises TimeoutError, or what the engine raises."""
    start = (base.bos_id or 0,)
    request: GenerateRequest | ScoreRequest
    if base.shape.kind == "encoder":
        request = ScoreRequest(base.entry.id, (start,), pooled=frozenset({0}), bos=False)
    else:
        request = GenerateRequest(base.entry.id, start, params=SamplingParams(max_tokens=1, temperature=0.0))
    ticket = services.engine.submit(request)
    try:
        ticket.result(TOKEN_SECONDS)
    finally:
        ticket.cancel()
