"""Quotas of keys and namespaces: bytes, adapters and jobs, held in the transaction that adds to them.

Asked by verbs and routes after the rows are there and before they are committed: writes take turns, so that of two at
the same time the second sees what the first has added, and is rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from registry.catalogue.database import Catalogue
from registry.errors import QuotaExceeded, RateLimitExceeded
from registry.names import sha256_digest
from registry.spec.limits import DefaultLimits, LimitKind, UseLimits

Stored = Literal["stored_bytes", "adapters"]
UNKNOWN_SECONDS = 5.0
"""What a job takes of a kind of which none has ended yet."""
MOST_SECONDS = 3600


def in_force(catalogue: Catalogue, defaults: DefaultLimits, kind: LimitKind, subject: str) -> UseLimits:
    """The limits of a key or namespace: its own, and the server's where it has none."""
    return catalogue.limits.get(kind, subject).over(defaults.of(kind))


def check_stored(
    catalogue: Catalogue, defaults: DefaultLimits, *what: Stored, key_id: str, namespaces: Iterable[str]
) -> None:
    """Raises QuotaExceeded where the key or one of the namespaces now holds more than it may."""
    for kind, subject, limits in _limited(catalogue, defaults, key_id, namespaces):
        if "stored_bytes" in what and limits.stored_bytes is not None:
            held = catalogue.limits.stored_bytes(kind, subject)
            if held > limits.stored_bytes:
                raise _too_many(kind, subject, f"would hold {held} bytes", limits.stored_bytes, "stored_bytes")
        if "adapters" in what:
            _check_adapters(catalogue, kind, subject, limits, adding=0)


def check_room(
    catalogue: Catalogue, defaults: DefaultLimits, files: Sequence[bytes], *, adapters: int, key_id: str,
    namespace: str,
) -> None:  # fmt: skip
    """Raises QuotaExceeded where these files and so many adapters would be too much, before any byte is stored.

    What is stored and then refused would lie there for nobody: `check_stored` decides, this spares the disk.
    """
    for kind, subject, limits in _limited(catalogue, defaults, key_id, [namespace]) if adapters else ():
        _check_adapters(catalogue, kind, subject, limits, adding=adapters)
    left = room_for_bytes(catalogue, defaults, key_id=key_id, namespaces=[namespace])
    if left is not None:
        new = [data for data in files if not catalogue.blobs.is_visible((namespace,), sha256_digest(data))]
        if sum(map(len, new)) > left[0]:
            raise left[1]


def _check_adapters(catalogue: Catalogue, kind: LimitKind, subject: str, limits: UseLimits, *, adding: int) -> None:
    if limits.adapters is None:
        return
    live = catalogue.limits.adapters(kind, subject) + adding
    if live > limits.adapters:
        raise _too_many(kind, subject, f"would have {live} live adapters and soups", limits.adapters, "adapters")


def check_jobs(catalogue: Catalogue, defaults: DefaultLimits, job: str, *, key_id: str, namespace: str) -> None:
    """Raises RateLimitExceeded where the key or the namespace now has more jobs than it may.

    `job` is the kind of the new one.
    """
    for kind, subject, limits in _limited(catalogue, defaults, key_id, [namespace]):
        if limits.jobs is None:
            continue
        waiting = catalogue.limits.jobs(kind, subject)
        if waiting > limits.jobs:
            each = catalogue.jobs.mean_seconds(job)
            raise RateLimitExceeded(
                f"{named(kind, subject)} has {waiting - 1} jobs that wait or run, and its limit is {limits.jobs}: "
                "wait until one has ended, or cancel one.",
                param="jobs",
                retry_after=min(MOST_SECONDS, max(1, math.ceil(UNKNOWN_SECONDS if each is None else each))),
            )


def room_for_bytes(
    catalogue: Catalogue, defaults: DefaultLimits, *, key_id: str, namespaces: Iterable[str]
) -> tuple[int, QuotaExceeded] | None:
    """The most bytes that may be added, and the refusal of more; None where there is no limit.

    What `check_stored` says in the end, asked before the bytes are sent.
    """
    found = None
    for kind, subject, limits in _limited(catalogue, defaults, key_id, namespaces):
        if limits.stored_bytes is not None:
            held = catalogue.limits.stored_bytes(kind, subject)
            room = max(0, limits.stored_bytes - held)
            if found is None or room < found[0]:
                what = f"holds {held} bytes, and this is more than is left"
                found = room, _too_many(kind, subject, what, limits.stored_bytes, "stored_bytes")
    return found


def _too_many(kind: LimitKind, subject: str, what: str, limit: int, param: Stored) -> QuotaExceeded:
    do = "retire some, or ask" if param == "adapters" else "send less, or ask"
    return QuotaExceeded(f"{named(kind, subject)} {what}; its limit is {limit}: {do} an admin for more.", param=param)


def named(kind: LimitKind, subject: str) -> str:
    """A key or namespace at the beginning of a sentence."""
    return f"{kind.capitalize()} '{subject}'"


def _limited(
    catalogue: Catalogue, defaults: DefaultLimits, key_id: str, namespaces: Iterable[str]
) -> Iterator[tuple[LimitKind, str, UseLimits]]:
    yield "key", key_id, in_force(catalogue, defaults, "key", key_id)
    for namespace in namespaces:
        yield "namespace", namespace, in_force(catalogue, defaults, "namespace", namespace)
