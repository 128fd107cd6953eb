"""Bodies of `/v1/replicas`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from service.http.schemas.wire import Wire


class Replica(Wire):
    """A server of the database, as it said last."""

    object: Literal["replica"] = "replica"
    id: str
    version: str | None = None
    """Of its code; null: it is of a release that says none."""
    revision: str | None = None
    """Of the schema that its code is made for, by which releases of one version are told apart."""
    role: Literal["all", "api", "worker"]
    url: str | None
    """Where routers reach it; null: they send it nothing."""
    alive: bool
    """False once two beats were missed."""
    bases: dict[str, str]
    """Fingerprints by base id."""
    places: int
    """Sequences that it generates together."""
    requests: int
    """In its engine, waiting and running."""
    adapters: int
    """Held ready, in `adapter_bytes` of `bank_bytes`."""
    adapter_bytes: int
    bank_bytes: int
    beat_seconds: float
    started_at: datetime
    seen_at: datetime
    """By the database's clock, as are all moments of replicas."""
    silent_seconds: float
    """How long ago that was."""


class ReplicaList(Wire):
    """The servers of the database, those out for less than an hour included, in the order in which they joined."""

    object: Literal["list"] = "list"
    data: list[Replica]
