"""Sessions of browsers: a key signs in once, and what the browser holds from then on is not the key.

It holds 256 random bits. The database has the hash of them, and of the secret that signed in: each request asks for
the key of that secret, as a request with the key itself does. So a key that is revoked, expires or gets another secret
ends its sessions, and any server on the same database knows them. Used by the pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from registry.catalogue import Database
from registry.errors import Unauthenticated
from service.access.key_watch import KeyWatch, present
from service.access.keys import SECRET_PATTERN, Principal, known, secret_sha256

MOST_OF_A_KEY = 50
"""Sessions of one key; the oldest end where there would be more."""
ENDED = "You were signed out: sign in again."


class Sessions:
    """The sessions of the browsers of one database, each `seconds` long. From any thread."""

    def __init__(
        self, database: Database, watch: KeyWatch, *, seconds: float, clock: Callable[[], datetime] = present
    ) -> None:
        self._database = database
        self._watch = watch
        self._lasts = timedelta(seconds=seconds)
        self._clock = clock

    def begin(self, secret: str, request_id: str, *, instead_of: str | None = None) -> tuple[str, Principal]:
        """Sign in with a key's secret: what the browser is to hold, and who it is; raises Unauthenticated.

        `instead_of` is what it has held until now: that session ends, and stays where nobody signs in.
        """
        if not SECRET_PATTERN.fullmatch(secret):
            raise Unauthenticated("This is no key: one is 'sk-soup-' and 43 letters, digits, '-' and '_'.")
        who = known(self._database, secret_sha256(secret), watch=self._watch, clock=self._clock)
        token = secrets.token_urlsafe(32)
        with self._database.write() as catalogue:
            former = None if instead_of is None else catalogue.sessions.find(secret_sha256(instead_of))
            if former is not None:
                catalogue.sessions.remove(former.token_sha256)
                who.caller(request_id).audit(catalogue, "session.end", former.key_id)
            catalogue.sessions.add(
                secret_sha256(token), secret_sha256=secret_sha256(secret), key_id=who.key_id,
                expires_at=self._clock() + self._lasts, most=MOST_OF_A_KEY,
            )  # fmt: skip
            who.caller(request_id).audit(catalogue, "session.begin", who.key_id)
        return token, who

    def principal(self, token: str) -> Principal:
        """Who signed in; raises Unauthenticated where nobody did, or the session or its key has ended."""
        with self._database.read() as catalogue:
            row = catalogue.sessions.find(secret_sha256(token))
        if row is None:
            raise Unauthenticated(ENDED)
        return known(self._database, row.secret_sha256, watch=self._watch, clock=self._clock)

    def end(self, token: str, who: Principal, request_id: str) -> None:
        """Sign out: what the browser holds is worth nothing from now on."""
        with self._database.write() as catalogue:
            catalogue.sessions.remove(secret_sha256(token))
            who.caller(request_id).audit(catalogue, "session.end", who.key_id)
