"""The signing keys of an issuer: its discovery document and key set, fetched over HTTP and cached for an hour.

A request for an unknown key fetches the set again, at most once a minute. Only one thread at a time waits for the
issuer; the others use the cached set. Never called on the event loop.
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

REFRESH_AFTER = 3600.0
"""Age in seconds at which a key set is fetched again when it is needed."""
MAX_AGE = 86_400.0
"""Age in seconds at which a key set is no longer used: a key may have been withdrawn."""
FETCH_INTERVAL = 60.0
"""Seconds between two fetches."""
FIRST_FETCH_INTERVAL = 5.0
"""Seconds between two fetches while there is no key set."""
TIMEOUT = 3.0
"""Seconds that an issuer may take to connect, and between two chunks of a response."""
TOTAL_TIMEOUT = 10.0
"""Seconds for a whole response."""
LARGEST = 256 * 1024
MAX_KEYS = 100
MEMBERS = ("kty", "kid", "use", "alg", "crv", "n", "e", "x", "y")
"""Members of a key that are read; keys in which one of them is no text are ignored."""
DISCOVERY = "/.well-known/openid-configuration"


class Issuer:
    """The keys of the issuer at `url`. From any thread; tests replace `clock`."""

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
        keys = self._cached(kid)
        if not keys or self._age() > REFRESH_AFTER:
            self.refresh()
            keys = self._cached(kid)
        if keys is None:
            raise Unavailable(
                f"The keys of the issuer {self.url} cannot be fetched now, so its tokens cannot be checked: try again "
                "in some seconds.",
                param="oidc_issuer",
            )
        return keys

    def refresh(self) -> None:
        """Fetch the key set, unless a fetch is running or was tried a moment ago; a failure is logged."""
        with self._lock:
            now = self._clock()
            interval = FIRST_FETCH_INTERVAL if self._keys is None else FETCH_INTERVAL
            if self._tried_at is not None and now - self._tried_at < interval:
                return
            self._tried_at = now
        try:
            keys = key_set(self.url)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            log.warning("the keys of %s cannot be fetched (%s): %s", self.url, type(error).__name__, error)
            return
        finally:
            with self._lock:  # counted from the end, so that the next request does not wait for an issuer that hangs
                self._tried_at = self._clock()
        with self._lock:
            self._keys, self._fetched_at = keys, self._clock()

    def _cached(self, kid: str | None) -> tuple[Jwk, ...] | None:
        with self._lock:
            keys = None if self._keys is None or self._age() > MAX_AGE else self._keys
        return keys if keys is None or kid is None else tuple(key for key in keys if key.get("kid") == kid)

    def _age(self) -> float:
        return self._clock() - self._fetched_at


def key_set(url: str) -> tuple[Jwk, ...]:
    """The public keys of the issuer at `url`; raises ValueError, or an error of HTTP, where it gives none."""
    with httpx2.Client(trust_env=not is_local(urlsplit(url)), timeout=TIMEOUT) as client:
        document = _json(client, url.rstrip("/") + DISCOVERY)
        if document.get("issuer") != url:
            raise ValueError("its discovery document names another issuer")
        address = document.get("jwks_uri")
        if not isinstance(address, str):
            raise ValueError("its discovery document has no jwks_uri")
        check_address(address, local=is_local(urlsplit(url)))
        keys = _json(client, address).get("keys")
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ValueError(f"its key set is no list of at most {MAX_KEYS} keys")
    return tuple(
        key for key in keys if isinstance(key, dict) and all(isinstance(key.get(name, ""), str) for name in MEMBERS)
    )


def check_address(url: str, *, local: bool = True) -> None:
    """Raises ValueError unless `url` is of https, or, where `local`, of http and this machine."""
    address = urlsplit(url)
    if address.scheme == "https" and address.hostname:
        return
    if not (local and address.scheme == "http" and is_local(address)):
        raise ValueError("an address of an issuer begins with https://")


def is_local(address: SplitResult) -> bool:
    """Return True if an address is this machine's own."""
    try:
        return address.hostname == "localhost" or ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return False


def check_issuer(url: str) -> None:
    """Raises InvalidParameter unless `url` can name an issuer."""
    try:
        check_address(url)
        address = urlsplit(url)
    except ValueError:
        address = None
    if address is None or address.query or address.fragment or address.username or len(url) > 255:
        raise InvalidParameter(
            "SOUP_OIDC_ISSUER is the https:// address of the issuer, as its tokens have it in 'iss'; http:// only for "
            "one on this machine.",
            param="oidc_issuer",
        )


def _json(client: httpx2.Client, url: str) -> dict[str, Any]:
    """The JSON object at an address, which may not redirect; bounded in bytes and in time."""
    deadline = time.monotonic() + TOTAL_TIMEOUT
    body = bytearray()
    with client.stream("GET", url, headers={"accept": "application/json"}, follow_redirects=False) as response:
        if response.status_code != 200:
            raise ValueError(f"{url} answered {response.status_code}")
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > LARGEST or time.monotonic() > deadline:
                raise ValueError(f"{url} answered more than {LARGEST} bytes, or took longer than {TOTAL_TIMEOUT:g} s")
    try:
        document = json.loads(body)
    except RecursionError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"{url} answered no object of JSON")
    return document
