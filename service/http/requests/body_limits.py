"""What a body may hold, call by call, and what all bodies together may: the bounds that `bodies` keeps.

A route says `@takes(TEXTS)` under its path where it needs more than SMALL. `SOUP_MAX_JSON_BYTES` bounds every call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from registry.errors import Busy, TooLarge
from service.settings import MIB, Settings

MAX_KEYS = 1000
"""Keys of one object: more than any body has, and few enough that naming every unknown one stays cheap."""
SMALL_BYTES = MIB
CHARACTER_BYTES = 12
"""The most bytes of JSON for one character of a text (escaped, beyond the basic plane), or for one token id."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class BodyLimit:
    """Bytes of one body, and values beside the `max_json_values` that every body may hold, by the settings."""

    bytes: Callable[[Settings], int]
    values: Callable[[Settings], int] = lambda _: 0

    def bytes_of(self, settings: Settings) -> int:
        """The most bytes, never beyond `max_json_bytes`."""
        return min(self.bytes(settings), settings.max_json_bytes)

    def values_of(self, settings: Settings) -> int:
        """The most values: texts, numbers, lists and objects."""
        return settings.max_json_values + self.values(settings)


def _all(settings: Settings) -> int:
    return settings.max_json_bytes


def _one_text(settings: Settings) -> int:
    return SMALL_BYTES + CHARACTER_BYTES * settings.max_text_chars


SMALL = BodyLimit(lambda _: SMALL_BYTES)
FILES = BodyLimit(_all)
"""Files and samples inline."""
RECIPE = BodyLimit(_all, lambda settings: settings.max_ingredients * MAX_KEYS)
"""A sample inline, or a recipe with a factor for each site of each ingredient."""
TEXTS = BodyLimit(_all, lambda settings: settings.max_texts)
CONVERSATION = BodyLimit(_all)
PROMPTS = BodyLimit(_all, lambda settings: settings.max_prompts + settings.max_text_chars)
"""Several texts, or lists of token ids that are together as long as one may be."""
ONE_TEXT = BodyLimit(_one_text)
TOKEN_IDS = BodyLimit(_one_text, lambda settings: settings.max_text_chars)


def takes(limit: BodyLimit) -> Callable[[Endpoint], Endpoint]:
    """Declare what the body of a route may hold."""

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.body_limit = limit  # type: ignore[attr-defined]  # for `limit_of`
        return endpoint

    return declare


def limit_of(endpoint: Callable[..., Any]) -> BodyLimit:
    """What the body of a route may hold: SMALL where it declares nothing."""
    limit: BodyLimit = getattr(endpoint, "body_limit", SMALL)
    return limit


class HeldBytes:
    """The bytes of JSON bodies that requests hold, of each key and together. From any thread.

    One key holds at most half of `most`, so that others have room. A body alone is never refused here, neither the
    only one of all nor, where there is room, a key's only one: what one may be is the affair of its call.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._by_key: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """What all requests hold now."""
        return self._by_key.total()

    def account(self) -> Account:
        """For one request: what it takes is given back by `close`."""
        return Account(self)

    def change(self, key: str, more: int, *, own: int) -> None:
        """Count `more` bytes for a request of `key` that holds `own`; raises Busy where there is no room for them."""
        with self._lock:
            others, of_key = self.total - own, self._by_key[key] - own
            full = (others > 0 and others + own + more > self._most) or (
                of_key > 0 and of_key + own + more > self._most // 2
            )
            if more > 0 and full:
                raise Busy(
                    f"The requests being answered hold {self.total} bytes of JSON, of {self._most} at most and half "
                    "of that for one key (SOUP_MAX_JSON_BYTES_HELD); try again.",
                    retry_after=2,
                )
            self._by_key[key] += more
            if not self._by_key[key]:
                del self._by_key[key]


class Account:
    """What one request holds of HeldBytes."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self._key = ""
        self._bytes = 0

    def take(self, key: str, count: int) -> None:
        """Hold `count` bytes more for `key`; raises Busy."""
        self._held.change(key, count, own=self._bytes)
        self._key, self._bytes = key, self._bytes + count

    def close(self) -> None:
        """Give everything back."""
        if self._bytes:
            self._held.change(self._key, -self._bytes, own=self._bytes)
            self._bytes = 0


def check_announced(length: str, most: int, settings: Settings) -> None:
    """Raises TooLarge where a `Content-Length` says that a body is larger than `most`, before any of it is read."""
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large(most, settings)


def too_large(limit: int, settings: Settings) -> TooLarge:
    """The refusal of a body beyond its call's bytes."""
    setting = " (SOUP_MAX_JSON_BYTES)" if limit == settings.max_json_bytes else ""
    return TooLarge(f"The body is larger than {limit} bytes, the most for this call{setting}; upload files as blobs.")


def too_many(what: str, limit: int) -> TooLarge:
    """The refusal of a body beyond its call's values."""
    return TooLarge(
        f"The body holds more than {limit} {what}, the most for this call (SOUP_MAX_JSON_VALUES and the limits of what "
        "it is for): send less at once."
    )
