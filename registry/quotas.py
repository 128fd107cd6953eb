"""Checks the quotas of keys and namespaces (bytes, adapters, jobs) in the transaction that adds to them.

Called by verbs and routes after rows are added and before they are committed. Writes are serialised: of two concurrent
ones, the second sees the rows of the first, and is rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from registry.catalogue.database import Catalogue
from registry.errors import QuotaExceeded, RateLimitExceeded
from registry.spec.limits import DefaultLimits, LimitKind, UseLimits

StorageQuota = Literal["stored_bytes", "adapters"]
DEFAULT_JOB_SECONDS = 5.0
"""The expected duration of a job of a kind of which none has ended yet."""
MAX_RETRY_SECONDS = 3600


def effective_limits(
    catalogue: Catalogue, defaults: DefaultLimits, subjects: Collection[tuple[LimitKind, str]]
) -> dict[tuple[LimitKind, str], UseLimits]:
    """The limits of keys and namespaces, with the server's defaults where they have none; with one query."""
    limits = catalogue.limits.of_subjects(subjects)
    return {(kind, name): limits.get((kind, name), UseLimits()).over(defaults.of(kind)) for kind, name in subjects}


def check_stored(
    catalogue: Catalogue, defaults: DefaultLimits, *quotas: StorageQuota, key_id: str, namespaces: Iterable[str]
) -> None:
    """Raise QuotaExceeded where the key or one of the namespaces now exceeds one of these quotas."""
    for kind, subject, limits in _all_limits(catalogue, defaults, key_id, namespaces):
        if "stored_bytes" in quotas:
            _check_bytes(catalogue, kind, subject, limits, adding={})
        if "adapters" in quotas:
            _check_adapters(catalogue, kind, subject, limits, adding=0)


def check_additions(
    catalogue: Catalogue,
    defaults: DefaultLimits,
    files: Mapping[str, int],
    *,
    adapters: int,
    key_id: str,
    namespace: str,
) -> None:
    """Raise QuotaExceeded where these files (sizes by digest) and adapters would exceed a quota once they are stored.

    Saves writing files that `check_stored`, which decides, would refuse.
    """
    for kind, subject, limits in _all_limits(catalogue, defaults, key_id, [namespace]):
        if adapters:
            _check_adapters(catalogue, kind, subject, limits, adding=adapters)
        if files:
            _check_bytes(catalogue, kind, subject, limits, adding=files)


def _check_bytes(
    catalogue: Catalogue, kind: LimitKind, subject: str, limits: UseLimits, *, adding: Mapping[str, int]
) -> None:
    if limits.stored_bytes is None:
        return
    counted = catalogue.limits.counted_blobs(kind, subject, adding) if adding else ()
    added = sum(size for digest, size in adding.items() if digest not in counted)
    stored = catalogue.limits.stored_bytes(kind, subject) + added
    if stored > limits.stored_bytes:
        raise _exceeded(kind, subject, f"would hold {stored} bytes", limits.stored_bytes, "stored_bytes")


def _check_adapters(catalogue: Catalogue, kind: LimitKind, subject: str, limits: UseLimits, *, adding: int) -> None:
    if limits.adapters is None:
        return
    live = catalogue.limits.adapters(kind, subject) + adding
    if live > limits.adapters:
        raise _exceeded(kind, subject, f"would have {live} live adapters and soups", limits.adapters, "adapters")


def check_jobs(catalogue: Catalogue, defaults: DefaultLimits, job_kind: str, *, key_id: str, namespace: str) -> None:
    """Raise RateLimitExceeded where the key or the namespace now exceeds its quota of jobs.

    `job_kind` is that of the new job, whose usual duration is the time to retry after.
    """
    for kind, subject, limits in _all_limits(catalogue, defaults, key_id, [namespace]):
        if limits.jobs is None:
            continue
        jobs = catalogue.limits.jobs(kind, subject)
        if jobs > limits.jobs:
            raise RateLimitExceeded(
                f"{subject_text(kind, subject)} has {jobs - 1} jobs that wait or run, and its limit is {limits.jobs}: "
                "wait until one has ended, or cancel one.",
                param="jobs",
                retry_after=usual_seconds(catalogue, job_kind),
            )


def usual_seconds(catalogue: Catalogue, job_kind: str) -> int:
    """The usual duration of jobs of a kind, after which to try again."""
    seconds = catalogue.jobs.mean_seconds(job_kind)
    return min(MAX_RETRY_SECONDS, max(1, math.ceil(DEFAULT_JOB_SECONDS if seconds is None else seconds)))


class ByteAllowance(NamedTuple):
    """The most bytes that may be added, and the error for more."""

    max_bytes: int
    error: QuotaExceeded

    def check(self, size: int) -> None:
        """Raise the error where `size` bytes are too many."""
        if size > self.max_bytes:
            raise self.error


def byte_allowance(
    catalogue: Catalogue, defaults: DefaultLimits, *, key_id: str, namespaces: Iterable[str]
) -> ByteAllowance | None:
    """The bytes that a key may add in namespaces; None where there is no limit.

    For checks before bytes are received; `check_stored` decides.
    """
    allowance = None
    for kind, subject, limits in _all_limits(catalogue, defaults, key_id, namespaces):
        if limits.stored_bytes is not None:
            stored = catalogue.limits.stored_bytes(kind, subject)
            max_bytes = max(0, limits.stored_bytes - stored)
            if allowance is None or max_bytes < allowance.max_bytes:
                problem = f"holds {stored} bytes, and this is more than is left"
                error = _exceeded(kind, subject, problem, limits.stored_bytes, "stored_bytes")
                allowance = ByteAllowance(max_bytes, error)
    return allowance


def _exceeded(kind: LimitKind, subject: str, problem: str, limit: int, param: StorageQuota) -> QuotaExceeded:
    advice = "retire some, or ask" if param == "adapters" else "send less, or ask"
    return QuotaExceeded(
        f"{subject_text(kind, subject)} {problem}; its limit is {limit}: {advice} an admin for more.", param=param
    )


def subject_text(kind: LimitKind, subject: str) -> str:
    """A key or namespace as the subject of a sentence."""
    return f"{kind.capitalize()} '{subject}'"


def _all_limits(
    catalogue: Catalogue, defaults: DefaultLimits, key_id: str, namespaces: Iterable[str]
) -> Iterator[tuple[LimitKind, str, UseLimits]]:
    """The limits of the key and of each namespace."""
    subjects: list[tuple[LimitKind, str]] = [("key", key_id), *(("namespace", name) for name in namespaces)]
    for (kind, subject), limits in effective_limits(catalogue, defaults, subjects).items():
        yield kind, subject, limits
