"""Callers with a token of an issuer: each has a row among the keys, made with its first request.

Limits, usage, the audit, jobs and uploads therefore work as for a key, and an identity can be revoked. Its rights are
those of the token of the request; the row stores those of the last token for display. Jobs of a revoked key that an
identity requested too also use them: they continue with its namespaces.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from registry.catalogue import KeyRow
from registry.errors import Busy, Forbidden, InvalidParameter, Unauthenticated, Unavailable
from service.access.key_watch import KeyWatch
from service.access.keys import Principal
from service.access.oidc.issuer import Issuer, check_issuer
from service.access.oidc.mapping import ClaimMapping, Rights, read_mapping
from service.settings import Settings

if TYPE_CHECKING:
    from service.access.oidc.tokens import Tokens

log = logging.getLogger("soup.oidc")

CHANGE_INTERVAL = 60.0
"""Seconds between two changes of an identity's row: people may have several tokens with different rights."""


class Identities:
    """The callers of one issuer, at most `max_identities`. From any thread; tests replace `clock`."""

    def __init__(
        self,
        tokens: Tokens,
        mapping: ClaimMapping,
        watch: KeyWatch,
        *,
        max_identities: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._mapping = mapping
        self._watch = watch
        self._max_identities = max_identities
        self._clock = clock
        self._lock = threading.Lock()
        self._changed_at: dict[str, float] = {}

    def begin(self) -> None:
        """Fetch the issuer's keys, so that a failure is logged at start; the server's own keys work without."""
        self._tokens.issuer.refresh()

    def principal(self, token: str) -> Principal:
        """The principal of a token.

        Raises Unauthenticated if it is invalid or its identity was revoked here, and Forbidden if it has no grant or
        there are too many identities. Raises Unavailable if the issuer's keys are unknown.
        """
        try:
            claims = self._tokens.claims(token)
            ends = _moment(claims["exp"])
        except Unauthenticated:
            self._watch.refused("token", None)
            raise
        rights = self._mapping.rights(claims)
        if rights is None:
            raise Forbidden(
                "This token has no scope on this server: no entry of its mapping matches the token's claims."
            )
        row = self._row(claims["sub"], rights)
        if row.revoked_at is not None:
            self._watch.refused("revoked", row.id)
            raise Unauthenticated("This identity was revoked on this server.")
        self._watch.used(row.id)
        return Principal(row.id, rights.namespaces, rights.scopes, ends)

    def _row(self, subject: str, rights: Rights) -> KeyRow:
        """The row of an identity, which is made, or updated where that is due."""
        id = identity_id(self._tokens.issuer.url, subject)
        with self._watch.database.read() as catalogue:
            row = catalogue.keys.find(id)
        if row is None:
            return self._add(id, subject, rights)
        stored = Rights(name=row.name, scopes=row.scopes, namespaces=row.namespaces)
        if stored == rights or row.revoked_at is not None or not self._is_due(id):
            return row
        try:
            return self._change(id, rights)
        except (Busy, Unavailable) as error:  # a later token has them too, and this one counts for its request
            log.warning("what a token of %s brought is not noted: %s", id, error)
            return row

    def _add(self, id: str, subject: str, rights: Rights) -> KeyRow:
        with self._watch.database.write() as catalogue:
            existing = catalogue.keys.find(id)  # another request of it may have been first
            if existing is not None:
                return existing
            if catalogue.keys.count_identities() >= self._max_identities:
                raise Forbidden(
                    f"This server knows {self._max_identities} callers with tokens, the maximum "
                    "(SOUP_OIDC_MAX_IDENTITIES)."
                )
            issuer = self._tokens.issuer.url
            row = catalogue.keys.add_identity(id, issuer=issuer, subject=subject, **asdict(rights))
            detail = {"by": "token", "issuer": issuer, "subject": subject, **_columns(rights)}
            catalogue.audit.record("key.create", id, key_id=id, request_id=None, detail=detail)
        return row

    def _change(self, id: str, rights: Rights) -> KeyRow:
        with self._watch.database.write() as catalogue:
            row = catalogue.keys.change(id, **_columns(rights))
            detail = {"by": "token", **_columns(rights)}
            catalogue.audit.record("key.change", id, key_id=id, request_id=None, detail=detail)
        return row

    def _is_due(self, id: str) -> bool:
        """Return True if an identity's row may be changed now, and not again for a minute."""
        with self._lock:
            now = self._clock()
            if now - self._changed_at.get(id, -CHANGE_INTERVAL) < CHANGE_INTERVAL:
                return False
            self._changed_at[id] = now
            return True


def identity_id(issuer: str, subject: str) -> str:
    """The id of an identity: the same on every server, and after a restore."""
    return "oidc-" + hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:24]


def identities_of(settings: Settings, watch: KeyWatch) -> Identities | None:
    """The identities of the settings' issuer; None where the settings name no issuer.

    Raises InvalidParameter for settings that exclude each other, and Unavailable where the packages for it are missing.
    """
    if settings.oidc_issuer is None:
        return None
    if settings.no_auth:
        raise InvalidParameter("Without keys no tokens are asked for: drop SOUP_OIDC_ISSUER, or --no-auth.")
    check_issuer(settings.oidc_issuer)
    if not settings.oidc_audience or settings.oidc_mapping is None:
        raise InvalidParameter(
            "SOUP_OIDC_ISSUER needs SOUP_OIDC_AUDIENCE, the audience of its tokens, and SOUP_OIDC_MAPPING, "
            "the file that maps claims to scopes.",
            param="oidc_issuer",
        )
    mapping = read_mapping(settings.oidc_mapping)
    try:
        from service.access.oidc.tokens import Tokens
    except ModuleNotFoundError:
        raise Unavailable(
            "SOUP_OIDC_ISSUER needs PyJWT and cryptography: pip install 'adaptersoup[oidc]'.", param="oidc_issuer"
        ) from None
    issuer = Issuer(settings.oidc_issuer)
    tokens = Tokens(issuer, audiences=settings.oidc_audience, leeway=settings.oidc_leeway_seconds)
    return Identities(tokens, mapping, watch, max_identities=settings.oidc_max_identities)


def _moment(seconds: Any) -> datetime:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        raise Unauthenticated("This token's 'exp' is not a valid time.") from None


def _columns(rights: Rights) -> dict[str, Any]:
    """The rights as columns of a row, and in the audit."""
    namespaces = None if rights.namespaces is None else list(rights.namespaces)
    return {"name": rights.name, "namespaces": namespaces, "scopes": sorted(rights.scopes)}
