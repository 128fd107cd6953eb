"""Sessions of browsers: a key signs in once, and the browser then has a session token instead of the key.

A token has 256 random bits. The database has its hash, and that of the secret that signed in: each request looks up the
key of that secret, like a request with the key itself. So a key that is revoked, expires or gets another secret ends
its sessions, and any server on the same database accepts them. Used by the pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from registry.catalogue import Database
from registry.errors import Unauthenticated
from service.access.key_watch import KeyWatch, present
from service.access.keys import SECRET_PATTERN, Principal, principal_of, secret_sha256

MOST_OF_A_KEY = 50
"""Most sessions of one key; the oldest end where there would be more."""
ENDED = "You were signed out: sign in again."


class Sessions:
    """The sessions of the browsers of one database, each `seconds` long. From any thread."""

    def __init__(
        self, database: Database, watch: KeyWatch, *, seconds: float, clock: Callable[[], datetime] = present
    ) -> None:
        self._database = database
        self._watch = watch
        self._duration = timedelta(seconds=seconds)
        self._clock = clock

    def begin(self, secret: str, request_id: str, *, instead_of: str | None = None) -> tuple[str, Principal]:
        """Sign in with a key's secret; return the token of the new session and its principal. Raises Unauthenticated.

        `instead_of` is the browser's former token, whose session ends if the sign-in succeeds.
        """
        if not SECRET_PATTERN.fullmatch(secret):
            raise Unauthenticated("This is no key: one is 'sk-soup-' and 43 letters, digits, '-' and '_'.")
        principal = principal_of(self._database, secret_sha256(secret), watch=self._watch, clock=self._clock)
        caller = replace(principal, request_id=request_id).caller
        token = secrets.token_urlsafe(32)
        with self._database.write() as catalogue:
            former = None if instead_of is None else catalogue.sessions.find(secret_sha256(instead_of))
            if former is not None:
                catalogue.sessions.remove(former.token_sha256)
                caller.audit(catalogue, "session.end", former.key_id)
            catalogue.sessions.add(
                secret_sha256(token),
                secret_sha256=secret_sha256(secret),
                key_id=principal.key_id,
                expires_at=self._clock() + self._duration,
                most=MOST_OF_A_KEY,
            )
            caller.audit(catalogue, "session.begin", principal.key_id)
        return token, principal

    def principal(self, token: str) -> Principal:
        """The principal of a session; raises Unauthenticated where there is none, or it or its key has ended."""
        with self._database.read() as catalogue:
            row = catalogue.sessions.find(secret_sha256(token))
        if row is None:
            raise Unauthenticated(ENDED)
        return principal_of(self._database, row.secret_sha256, watch=self._watch, clock=self._clock)

    def end(self, token: str, principal: Principal) -> None:
        """Sign out: the token is refused from now on."""
        with self._database.write() as catalogue:
            catalogue.sessions.remove(secret_sha256(token))
            principal.caller.audit(catalogue, "session.end", principal.key_id)
