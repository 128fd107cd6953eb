"""What a router knows of a request before it is sent: whose key it has, and which adapter it is for.

Looked up as the servers do it, and kept for less than a second: an alias that moves is followed at once. None of it
decides what the caller may do or gets: what is unknown here, or was a moment ago, goes to some replica, which looks it
up by itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

import anyio
from anyio import to_thread

from registry.catalogue import Database, KeyRow
from registry.catalogue.rows import Namespaces
from registry.errors import InvalidName, NotFound, Retired
from registry.names import BaseRef, is_part, parse_ref

KEPT_SECONDS = 0.5
MOST_KEPT = 10_000
TOKENS = "tokens"
"""Whose bodies those of all tokens of an issuer count as: they are not verified here."""

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Asker:
    """Who sent a request, as far as its key says: what it sees."""

    id: str
    namespaces: Namespaces
    is_operator: bool = False
    """Scope admin and all namespaces."""


@dataclass(frozen=True)
class Destination:
    """What a request is for: a base model with an adapter's digest, or without one (None)."""

    base: str
    digest: str | None

    @property
    def key(self) -> str | None:
        """What is loaded for it beside the base model; None where that is nothing."""
        return None if self.digest is None else f"{self.base}\n{self.digest}"


class Directory:
    """The lookups of one router, each a read of the database in a thread unless it was made a moment ago.

    They raise Busy or Unavailable.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._askers: _Recent[Asker | None] = _Recent(clock)
        self._destinations: _Recent[Destination | None] = _Recent(clock)

    async def asker(self, authorization: str) -> Asker | None:
        """Who stands behind an Authorization header; None where no key does, which the replica will say.

        Tokens of an issuer are one asker for all, who sees everything: where their requests go tells nobody anything,
        since an answer to a refused one does not say who gave it.
        """
        kind, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if kind.lower() != "bearer":
            return None
        if secret.count(".") == 2:
            return Asker(TOKENS, None)
        hashed = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
        return await self._askers.get(hashed, lambda: self._find_asker(hashed))

    def _find_asker(self, hashed: str) -> Asker | None:
        with self._database.read() as catalogue:
            row = catalogue.keys.by_secret(hashed)
            if row is None and (former := catalogue.keys.by_former_secret(hashed)) is not None:
                row = former[0] if former[1] > datetime.now(UTC) else None
        return None if row is None or _has_ended(row) else _asker_of(row)

    async def destination(self, asker: Asker, model: str) -> Destination | None:
        """What a model's name stands for now, to whoever asks; None where that is nothing, or the server's choice."""
        if is_part(model):
            return Destination(model, None)
        scope = "*" if asker.namespaces is None else ",".join(sorted(asker.namespaces))
        return await self._destinations.get(f"{scope} {model}", lambda: self._find(asker.namespaces, model))

    def _find(self, visible: Namespaces, model: str) -> Destination | None:
        try:
            ref = parse_ref(model)
            if isinstance(ref, BaseRef):
                return Destination(ref.id, None)
            with self._database.read() as catalogue:
                row = catalogue.adapters.resolve(visible, ref)
        except (InvalidName, NotFound, Retired):
            return None
        return Destination(row.base_model, row.digest)


def _has_ended(row: KeyRow) -> bool:
    return row.revoked_at is not None or row.is_expired(datetime.now(UTC))


def _asker_of(row: KeyRow) -> Asker:
    return Asker(row.id, row.namespaces, row.namespaces is None and "admin" in row.scopes)


class _Recent(Generic[Kept]):
    """What was found lately, by its key. Asked on the event loop: what is not there, a thread finds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[str, tuple[float, Kept]] = {}
        self._finding: dict[str, anyio.Event] = {}

    async def get(self, key: str, find: Callable[[], Kept]) -> Kept:
        """What was found within KEPT_SECONDS, or is found now; of those who ask for the same at once one finds it."""
        while True:
            known = self._found.get(key)
            if known is not None and self._clock() - known[0] < KEPT_SECONDS:
                return known[1]
            found = self._finding.get(key)
            if found is None:
                break
            await found.wait()
        self._finding[key] = anyio.Event()
        try:
            now = self._clock()
            value = await to_thread.run_sync(find)
            if len(self._found) >= MOST_KEPT:
                self._found = {}
            self._found[key] = now, value
        finally:  # where it was not found, the next of those who wait tries
            self._finding.pop(key).set()
        return value
