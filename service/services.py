"""The services of a running server (registry, engine, settings, rates, ...) as one frozen value."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.context import Registry
from registry.uploads.sessions import UploadSessions
from service.base_models import ServedBaseModels
from service.engine.text_calls import EngineCalls
from service.job_board import JobBoard
from service.mixtures import Mixtures
from service.observability.usage import UsageCounts
from service.rates import Rates, SharedRates
from service.settings import Settings

if TYPE_CHECKING:
    from service.observability.tracing import Tracing


@dataclass(frozen=True)
class Services:
    """The values that a server hands down to its routes and jobs; `service.runtime` builds, starts and stops it.

    `bases` are the registry's base models with their tokenizers and sizes. `selections` bounds how many selections
    embed at once: each occupies a thread, and every request needs one.
    """

    settings: Settings
    registry: Registry
    bases: ServedBaseModels
    engine: EngineCalls
    jobs: JobBoard
    selections: threading.BoundedSemaphore
    uploads: UploadSessions
    rates: Rates | SharedRates
    usage: UsageCounts
    signed_url: Callable[[str], str] | None = None
    """The URL of the store to which a download of a blob is redirected; None if the server sends the blob."""
    tracing: Tracing | None = None
    mixtures: Mixtures = field(default_factory=Mixtures)
    rotating_keys: threading.Lock = field(default_factory=threading.Lock)
    """Held while a secret is replaced in the database and in the admin key's file, so that both change in one order."""
    waiting_for_pools: Counter[str] = field(default_factory=Counter)
    """Requests by key that wait until a sample of their pool is embedded. Used in the event loop alone."""
