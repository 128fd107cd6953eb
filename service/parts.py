"""What routes and jobs work with, as one frozen value: the registry, the engine, the settings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.context import Registry
from registry.uploads.sessions import UploadSessions
from service.base_models import ServedBaseModels
from service.engine import Engine
from service.engine.grammars import Grammars
from service.job_board import JobBoard
from service.observability.usage import UsageCounts
from service.rates import Rates, SharedRates
from service.settings import Settings

if TYPE_CHECKING:
    from service.observability.tracing import Tracing


@dataclass(frozen=True)
class Parts:
    """The parts of a running server, handed down to routes and jobs; `runtime` has their life cycle.

    `bases` are the registry's base models, with what only a server knows of them. `selections` counts those that may
    embed at once: each holds a thread, and threads are what every request needs.
    """

    settings: Settings
    registry: Registry
    bases: ServedBaseModels
    engine: Engine
    jobs: JobBoard
    selections: threading.BoundedSemaphore
    uploads: UploadSessions
    rates: Rates | SharedRates
    usage: UsageCounts
    signed_url: Callable[[str], str] | None = None
    """The URL of the store that a download of a blob is sent to; None where the server sends it."""
    tracing: Tracing | None = None
    grammars: Grammars = field(default_factory=Grammars)
