"""Callers that come with a token of an issuer: each has a row among the keys, made when it is first seen.

So limits, usage, the audit, jobs and uploads are of it as they are of a key, and it can be revoked. What it may do is
what the token that asks brings; the row keeps what the last one brought, for people to read, and for jobs of a revoked
key that an identity asked for too: they go on with its namespaces.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from registry.catalogue import KeyRow
from registry.errors import Busy, Forbidden, Unauthenticated, Unavailable
from service.access.key_watch import KeyWatch
from service.access.keys import Principal
from service.access.oidc.callers import identity_id, tokens_of
from service.access.oidc.grants import Grants
from service.settings import Settings

if TYPE_CHECKING:
    from service.access.oidc.tokens import Tokens

log = logging.getLogger("soup.oidc")

APART = 60.0
"""Seconds between two changes of an identity's row: people may have several tokens, and each brings its own."""


@dataclass(frozen=True)
class _Seen:
    """What a token says of its caller, as the row has it."""

    name: str
    namespaces: tuple[str, ...] | None
    scopes: frozenset[str]


class Identities:
    """The callers of one issuer, at most `most` of them. From any thread; `clock` is the tests' seam for time."""

    def __init__(
        self, tokens: Tokens, grants: Grants, watch: KeyWatch, *, most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._tokens = tokens
        self._grants = grants
        self._watch = watch
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: dict[str, float] = {}

    def begin(self) -> None:
        """Fetch the issuer's keys, so that the log says at start where that fails; keys of ours work without."""
        self._tokens.issuer.refresh()

    def principal(self, token: str) -> Principal:
        """Who is behind a token, and what it brings.

        Raises Unauthenticated where it is not to be believed or its identity was revoked here, Forbidden where it
        brings nothing or there are too many identities, Unavailable where the issuer's keys are not known.
        """
        try:
            claims = self._tokens.claims(token)
            ends = _moment(claims["exp"])
        except Unauthenticated:
            self._watch.refused("token", None)
            raise
        granted = self._grants.of(claims)
        if granted is None:
            raise Forbidden("This token brings no scope: the server's mapping knows none of its claims' values.")
        seen = _Seen(self._grants.name_of(claims), granted.namespaces, granted.scopes)
        row = self._row(claims["sub"], seen)
        if row.revoked_at is not None:
            self._watch.refused("revoked", row.id)
            raise Unauthenticated("This identity was revoked on this server.")
        self._watch.used(row.id)
        return Principal(row.id, granted.namespaces, granted.scopes, ends)

    def _row(self, subject: str, seen: _Seen) -> KeyRow:
        """The row of an identity, made or brought up to date where that is due."""
        id = identity_id(self._tokens.issuer.url, subject)
        with self._watch.database.read() as catalogue:
            found = catalogue.keys.identity(id)
        if found is None:
            return self._made(id, subject, seen)
        was = _Seen(found.name, found.namespaces, found.scopes)
        if was == seen or found.revoked_at is not None or not self._due(id):
            return found
        try:
            return self._changed(id, seen)
        except (Busy, Unavailable) as error:  # a later token says it again, and this one brings what it brings
            log.warning("what a token of %s brought is not noted: %s", id, error)
            return found

    def _made(self, id: str, subject: str, seen: _Seen) -> KeyRow:
        with self._watch.database.write() as catalogue:
            found = catalogue.keys.identity(id)  # another request of it may have been first
            if found is not None:
                return found
            if catalogue.keys.count_identities() >= self._most:
                raise Forbidden(
                    f"This server knows {self._most} callers with tokens, as many as it takes "
                    "(SOUP_OIDC_MAX_IDENTITIES)."
                )
            issuer = self._tokens.issuer.url
            row = catalogue.keys.add_identity(id, issuer=issuer, subject=subject, **asdict(seen))
            detail = {"by": "token", "issuer": issuer, "subject": subject, **_shown(seen)}
            catalogue.audit.record("key.create", id, key_id=id, request_id=None, detail=detail)
        return row

    def _changed(self, id: str, seen: _Seen) -> KeyRow:
        with self._watch.database.write() as catalogue:
            row = catalogue.keys.change(id, **_shown(seen))
            detail = {"by": "token", **_shown(seen)}
            catalogue.audit.record("key.change", id, key_id=id, request_id=None, detail=detail)
        return row

    def _due(self, id: str) -> bool:
        """Whether an identity's row may be changed now; asked for once, it may not be again for a minute."""
        with self._lock:
            now = self._clock()
            if now - self._noted.get(id, -APART) < APART:
                return False
            self._noted[id] = now
            return True


def identities_of(settings: Settings, watch: KeyWatch) -> Identities | None:
    """The identities that the settings ask for, None where they ask for none; raises as `tokens_of` does."""
    found = tokens_of(settings)
    return None if found is None else Identities(*found, watch, most=settings.oidc_max_identities)


def _moment(seconds: Any) -> datetime:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        raise Unauthenticated("This token's 'exp' is no moment that there is.") from None


def _shown(seen: _Seen) -> dict[str, Any]:
    """As the columns of a row, and the audit, have it."""
    namespaces = None if seen.namespaces is None else list(seen.namespaces)
    return {"name": seen.name, "namespaces": namespaces, "scopes": sorted(seen.scopes)}
