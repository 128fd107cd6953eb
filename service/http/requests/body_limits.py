"""Limits of request bodies, for each call and for all bodies in memory together; `bodies` enforces them.

A route that needs more than SMALL declares it by `@takes(TEXTS)`. `SOUP_MAX_JSON_BYTES` bounds every call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from registry.errors import Busy, TooLarge
from service.settings import Settings
from service.settings.limits import MIB

MAX_KEYS = 1000
"""Keys of one object: more than any body needs, and few enough to name every unknown one in an error."""
SMALL_BYTES = MIB
CHARACTER_BYTES = 12
"""Most bytes of JSON for one character of a text (escaped, beyond the basic plane) or for one token id."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_LIMIT = "body_limit"
"""Attribute of an endpoint with its limit."""


@dataclass(frozen=True)
class BodyLimit:
    """Functions from the settings to the bytes of one body, and to its values beyond `max_json_values`."""

    bytes: Callable[[Settings], int]
    values: Callable[[Settings], int] = lambda _: 0

    def bytes_of(self, settings: Settings) -> int:
        """Return the most bytes of a body, never beyond `max_json_bytes`."""
        return min(self.bytes(settings), settings.max_json_bytes)

    def values_of(self, settings: Settings) -> int:
        """Return the most values of a body: texts, numbers, lists and objects."""
        return settings.max_json_values + self.values(settings)


def _all(settings: Settings) -> int:
    return settings.max_json_bytes


def _one_text(settings: Settings) -> int:
    return SMALL_BYTES + CHARACTER_BYTES * settings.max_text_chars


SMALL = BodyLimit(lambda _: SMALL_BYTES)
LARGE = BodyLimit(_all)
"""Inline files and samples, and conversations."""
RECIPE = BodyLimit(_all, lambda settings: settings.max_ingredients * MAX_KEYS)
"""An inline sample, or a recipe with a factor for each site of each ingredient."""
TEXTS = BodyLimit(_all, lambda settings: settings.max_texts)
TEXTS_OR_IDS = BodyLimit(_all, lambda settings: settings.max_texts + settings.max_text_chars)
"""Several texts, or lists of token ids of together `max_text_chars` ids."""
PROMPTS = BodyLimit(_all, lambda settings: settings.max_prompts + settings.max_text_chars)
"""Several prompts, each a text or a list of token ids, of together `max_text_chars` ids."""
ONE_TEXT = BodyLimit(_one_text)
TOKEN_IDS = BodyLimit(_one_text, lambda settings: settings.max_text_chars)


def takes(limit: BodyLimit) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that declares the limit of a route's body."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _LIMIT, limit)
        return endpoint

    return declare


def limit_of(endpoint: Callable[..., Any]) -> BodyLimit:
    """Return the limit of a route's body, SMALL if it declares none."""
    limit: BodyLimit = getattr(endpoint, _LIMIT, SMALL)
    return limit


class BodyMemory:
    """Budget of bytes for JSON bodies in memory, for each key and in total. Thread-safe.

    One key may use half of `most`, so that others can send too. A single body is never refused here, neither the only
    one of all nor, within `most`, a key's only one: BodyLimit bounds it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._by_key: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """The bytes of all bodies in memory."""
        return self._by_key.total()

    def account(self) -> Account:
        """Return an account for one request; its `close` releases what it has taken."""
        return Account(self)

    def change(self, key_id: str, delta: int, *, of_request: int) -> None:
        """Add `delta` bytes to those of a request that has `of_request`; raises Busy beyond the budget."""
        with self._lock:
            size = of_request + delta
            of_others, of_key = self.total - of_request, self._by_key[key_id] - of_request
            exceeds_total = of_others > 0 and of_others + size > self._most
            exceeds_half = of_key > 0 and of_key + size > self._most // 2
            if delta > 0 and (exceeds_total or exceeds_half):
                raise Busy(
                    f"The running requests hold {self.total} bytes of JSON; the maximum is {self._most}, half of it "
                    "for one key (SOUP_MAX_JSON_BYTES_HELD): try again.",
                    retry_after=2,
                )
            self._by_key[key_id] += delta
            if not self._by_key[key_id]:
                del self._by_key[key_id]


class Account:
    """The bytes that one request has taken from BodyMemory."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._key_id = ""
        self._bytes = 0

    def take(self, key_id: str, count: int) -> None:
        """Take `count` more bytes for a key; raises Busy."""
        self._memory.change(key_id, count, of_request=self._bytes)
        self._key_id, self._bytes = key_id, self._bytes + count

    def close(self) -> None:
        """Release all bytes."""
        if self._bytes:
            self._memory.change(self._key_id, -self._bytes, of_request=self._bytes)
            self._bytes = 0


def check_announced(length: str, most: int, settings: Settings) -> None:
    """Raise TooLarge if a `Content-Length` announces more than `most` bytes."""
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large(most, settings)


def too_large(limit: int, settings: Settings) -> TooLarge:
    """Return the error for a body with too many bytes for its call."""
    setting = " (SOUP_MAX_JSON_BYTES)" if limit == settings.max_json_bytes else ""
    return TooLarge(f"The body is larger than {limit} bytes, the most for this call{setting}; upload files as blobs.")


def too_many(noun: str, limit: int) -> TooLarge:
    """Return the error for a body with too many values, or lists and objects, for its call."""
    return TooLarge(
        f"The body holds more than {limit} {noun}, the most for this call (SOUP_MAX_JSON_VALUES and the limits of what "
        "it is for): send less at once."
    )
