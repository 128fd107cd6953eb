"""Rows of replicas as frozen values, made by `replicas`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

ReplicaRole = Literal["all", "api", "worker"]


@dataclass(frozen=True)
class ReplicaLoad:
    """What a server has to do, and what it holds."""

    requests: int
    """In its engine, waiting and running."""
    adapters: int
    """Held ready."""
    adapter_bytes: int


@dataclass(frozen=True, kw_only=True)
class NewReplica:
    """A server as it joins those of its database; `url` is where routers reach it, None where they do not."""

    id: str
    role: ReplicaRole
    url: str | None
    bases: Mapping[str, str]
    """Fingerprints by base id."""
    places: int
    """Sequences that it generates together."""
    bank_bytes: int
    """Room for adapters held ready."""
    beat: timedelta
    """How often it says that it is there."""
    version: str | None = None
    """Of its code; None of a server of a release that said none, as is the next."""
    revision: str | None = None
    """Of the schema that its code is made for."""


@dataclass(frozen=True, kw_only=True)
class ReplicaRow(NewReplica, ReplicaLoad):
    """A server of the database as it said last, at `seen_at`; `alive` is whether it was there when it was read."""

    started_at: datetime
    seen_at: datetime
    read_at: datetime
    alive: bool
