"""The signing keys of an issuer: its discovery document and key set, fetched over HTTP and kept for an hour.

Whoever needs a key that is not there has the set fetched anew, at most once a minute, however many ask: only one
thread ever waits for the issuer, all others go on with what there is. Nobody calls this on the event loop.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx2

from registry.errors import InvalidParameter, Unavailable

log = logging.getLogger("soup.oidc")

Jwk = dict[str, Any]

FRESH = 3600.0
"""Seconds after which a key set is fetched anew when it is needed."""
KEPT = 86_400.0
"""Seconds after which one is no longer used where the issuer gives no other: a key may have been withdrawn."""
APART = 60.0
"""Seconds between two fetches; five where there is no key set yet."""
FIRST_APART = 5.0
PAUSE = 3.0
"""Seconds that an issuer may take to connect, and between two pieces of an answer."""
WHOLE = 10.0
"""Seconds for a whole answer."""
LARGEST = 256 * 1024
MOST_KEYS = 100
READ = ("kty", "kid", "use", "alg", "crv", "n", "e", "x", "y")
"""Members of a key that are looked at, texts all of them; one in which they are not is passed over."""
DISCOVERY = "/.well-known/openid-configuration"


class Issuer:
    """The keys of the issuer at `url`. From any thread; `clock` is the tests' seam for time."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: tuple[Jwk, ...] | None = None
        self._fetched_at = 0.0
        self._tried_at: float | None = None

    def keys(self, kid: str | None) -> tuple[Jwk, ...]:
        """The keys with this id, or all where a token names none; nothing where the issuer has no such key.

        Raises Unavailable where no key set could be fetched.
        """
        found = self._kept(kid)
        if not found or self._age() > FRESH:
            self.refresh()
            found = self._kept(kid)
        if found is None:
            raise Unavailable(
                f"The keys of the issuer {self.url} cannot be fetched now, so its tokens cannot be checked: try again "
                "in some seconds.",
                param="oidc_issuer",
            )
        return found

    def refresh(self) -> None:
        """Fetch the key set, unless that was tried a moment ago or is being done; the log has what went wrong."""
        with self._lock:
            now = self._clock()
            apart = FIRST_APART if self._keys is None else APART
            if self._tried_at is not None and now - self._tried_at < apart:
                return
            self._tried_at = now
        try:
            keys = key_set(self.url)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            log.warning("the keys of %s cannot be fetched (%s): %s", self.url, type(error).__name__, error)
            return
        finally:
            with self._lock:  # the time it took counts: an issuer that hangs is not asked by the next at once
                self._tried_at = self._clock()
        with self._lock:
            self._keys, self._fetched_at = keys, self._clock()

    def _kept(self, kid: str | None) -> tuple[Jwk, ...] | None:
        with self._lock:
            keys = None if self._keys is None or self._age() > KEPT else self._keys
        return keys if keys is None or kid is None else tuple(one for one in keys if one.get("kid") == kid)

    def _age(self) -> float:
        return self._clock() - self._fetched_at


def key_set(url: str) -> tuple[Jwk, ...]:
    """The public keys of the issuer at `url`; raises ValueError, or an error of HTTP, where it gives none."""
    with httpx2.Client(trust_env=not is_local(urlsplit(url)), timeout=PAUSE) as client:
        document = _json(client, url.rstrip("/") + DISCOVERY)
        if document.get("issuer") != url:
            raise ValueError("its discovery document names another issuer")
        where = document.get("jwks_uri")
        if not isinstance(where, str):
            raise ValueError("its discovery document has no jwks_uri")
        check_address(where, local=is_local(urlsplit(url)))
        found = _json(client, where).get("keys")
    if not isinstance(found, list) or len(found) > MOST_KEYS:
        raise ValueError(f"its key set is no list of at most {MOST_KEYS} keys")
    return tuple(
        one for one in found if isinstance(one, dict) and all(isinstance(one.get(name, ""), str) for name in READ)
    )


def check_address(url: str, *, local: bool = True) -> None:
    """Raises ValueError unless `url` is of https, or, where `local`, of http and this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if not (local and parts.scheme == "http" and is_local(parts)):
        raise ValueError("an address of an issuer begins with https://")


def is_local(parts: SplitResult) -> bool:
    """Whether an address is this machine's own."""
    try:
        return parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def check_issuer(url: str) -> None:
    """Raises InvalidParameter unless `url` can name an issuer."""
    try:
        check_address(url)
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or parts.query or parts.fragment or parts.username or len(url) > 255:
        raise InvalidParameter(
            "SOUP_OIDC_ISSUER is the https:// address of the issuer, as its tokens have it in 'iss'; http:// only for "
            "one on this machine.",
            param="oidc_issuer",
        )


def _json(client: httpx2.Client, url: str) -> dict[str, Any]:
    """An object of JSON from an address, which may not redirect; bounded in bytes and in time."""
    until = time.monotonic() + WHOLE
    read = bytearray()
    with client.stream("GET", url, headers={"accept": "application/json"}, follow_redirects=False) as answer:
        if answer.status_code != 200:
            raise ValueError(f"{url} answered {answer.status_code}")
        for piece in answer.iter_bytes():
            read += piece
            if len(read) > LARGEST or time.monotonic() > until:
                raise ValueError(f"{url} answered more than {LARGEST} bytes, or took longer than {WHOLE:g} s")
    try:
        found = json.loads(read)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{url} answered no object of JSON")
    return found
