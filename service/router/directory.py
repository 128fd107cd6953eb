"""What a router knows of a request before it is sent: whose key it has, and which adapter it is for.

Looked up as the servers do it, and kept for less than a second: an alias that moves is followed at once. None of it
decides what the caller may do or gets: what is unknown here, or was a moment ago, goes to some replica, which looks it
up by itself. Nobody waits for long: a lookup that fails or takes more than a moment sends the request anywhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from registry.catalogue import Database, KeyRow
from registry.catalogue.rows import Namespaces
from registry.errors import Busy, InvalidName, NotFound, Retired, Unauthenticated
from registry.names import BaseRef, is_part, parse_ref
from service.hashed_secrets import secret_sha256
from service.oidc.callers import identity_id
from service.oidc.grants import Grants

if TYPE_CHECKING:
    from service.oidc.tokens import Tokens

KEPT_SECONDS = 0.5
MOST_KEPT = 10_000
LOOK_SECONDS = 1.0
"""How long a request waits for a lookup; what that finds later is there for the next."""
MOST_LOOKS = 1000
"""Lookups that have not ended: while the database hangs no more are begun."""

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

    There are `threads` for them. `issuer` verifies tokens; where it is None they are nobody's. Raises Busy or
    Unavailable.
    """

    def __init__(
        self, database: Database, *, threads: int, issuer: tuple[Tokens, Grants] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._database = database
        self._issuer = issuer
        self._threads = ThreadPoolExecutor(threads, "directory")
        self._askers: _Recent[Asker | None] = _Recent(self._threads, clock)
        self._destinations: _Recent[Destination | None] = _Recent(self._threads, clock)

    def close(self) -> None:
        """Begin no lookup more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def asker(self, authorization: str) -> Asker | None:
        """Who stands behind an Authorization header; None where nobody does, which the replica will say.

        A token of the issuer is verified as the servers do it; nothing is written about its caller here.
        """
        kind, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if kind.lower() != "bearer":
            return None
        hashed = secret_sha256(secret)
        if secret.count(".") != 2:
            return await self._askers.get(hashed, lambda: self._find_asker(hashed))
        return None if self._issuer is None else await self._askers.get(hashed, lambda: self._find_caller(secret))

    async def session(self, token: str) -> Asker | None:
        """Whose session a browser holds; None where it is none, or none any more."""
        hashed = secret_sha256(token)
        return await self._askers.get(f"session {hashed}", lambda: self._find_session(hashed))

    def _find_session(self, hashed: str) -> Asker | None:
        with self._database.read() as catalogue:
            row = catalogue.sessions.find(hashed)
        return None if row is None else self._find_asker(row.secret_sha256)

    def _find_caller(self, token: str) -> Asker | None:
        if self._issuer is None:
            return None
        tokens, grants = self._issuer
        try:
            claims = tokens.claims(token)
        except Unauthenticated:
            return None
        granted = grants.of(claims)
        if granted is None:
            return None
        id = identity_id(tokens.issuer.url, claims["sub"])
        with self._database.read() as catalogue:
            row = catalogue.keys.identity(id)
        if row is not None and row.revoked_at is not None:
            return None
        return Asker(id, granted.namespaces, granted.namespaces is None and "admin" in granted.scopes)

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

    def __init__(self, threads: Executor, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._clock = clock
        self._found: dict[str, tuple[float, Kept]] = {}
        self._finding: dict[str, asyncio.Future[Kept]] = {}

    async def get(self, key: str, find: Callable[[], Kept]) -> Kept:
        """What was found within KEPT_SECONDS, or is found now; of those who ask for the same at once one finds it.

        All of them get what came of that, an error too; raises Busy where it takes longer than LOOK_SECONDS.
        """
        known = self._found.get(key)
        if known is not None and self._clock() - known[0] < KEPT_SECONDS:
            return known[1]
        look = self._finding.get(key)
        if look is None:
            if len(self._finding) >= MOST_LOOKS:
                raise Busy(f"{MOST_LOOKS} lookups wait for the database; try again.", retry_after=1)
            look = asyncio.get_running_loop().run_in_executor(self._threads, find)
            self._finding[key] = look
            look.add_done_callback(partial(self._keep, key))
        try:
            return await asyncio.wait_for(asyncio.shield(look), LOOK_SECONDS)
        except TimeoutError:
            raise Busy("The database takes long to look something up; try again.", retry_after=1) from None

    def _keep(self, key: str, look: asyncio.Future[Kept]) -> None:
        """A look has ended."""
        del self._finding[key]
        if look.cancelled() or look.exception() is not None:
            return
        if len(self._found) >= MOST_KEPT:
            self._found = {}
        self._found[key] = self._clock(), look.result()
