"""Limits of the job queue: how many unfinished jobs of a kind one key, and all keys together, may have.

Checked by code that queues a job for a request, in its transaction if there is one, with the quotas of jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow
from registry.errors import Busy, Unauthenticated
from registry.quotas import check_jobs, usual_seconds
from service.access.keys import Principal
from service.services import Services
from service.settings import Settings


def queue_job(
    services: Services,
    catalogue: Catalogue,
    principal: Principal,
    kind: str,
    enqueue: Callable[..., JobRow],
    *,
    namespace: str,
    action: str,
    **detail: Any,
) -> JobRow:
    """Queue one job for a key by `enqueue`, which gets `namespace` and `created_by`, and audit the request as `action`.

    Raises Busy or RateLimitExceeded beyond the limits, and Unauthenticated if the key was revoked, perhaps while its
    request waited.
    """
    key_id = principal.key_id
    if catalogue.keys.is_revoked(key_id):
        raise Unauthenticated("This key was revoked.")
    check_queue(catalogue, services.settings, kind, key_id)
    job = enqueue(namespace=namespace, created_by=key_id)
    check_jobs(catalogue, services.registry.quotas, kind, key_id=key_id, namespace=namespace)
    principal.caller.audit(catalogue, action, job.id, namespace=namespace, **detail)
    return job


def check_queue(catalogue: Catalogue, settings: Settings, kind: str, key_id: str) -> None:
    """Raise Busy if the key, or all keys together, have as many unfinished jobs of this kind as allowed."""
    key_count = catalogue.jobs.count_active(kind, created_by=key_id)
    if key_count >= settings.job_queue_per_key:
        raise Busy(
            f"This key has {key_count} waiting or running jobs of kind {kind!r}; the maximum is "
            f"{settings.job_queue_per_key} (SOUP_JOB_QUEUE_PER_KEY): wait until one ends, or cancel one.",
            retry_after=usual_seconds(catalogue, kind),
        )
    count = catalogue.jobs.count_active(kind)
    limit = settings.training_queue if kind == "train" else settings.job_queue
    if count >= limit:
        raise Busy(
            f"The server has {count} waiting or running jobs of kind {kind!r}; the maximum is {limit}: try "
            "again when one has ended.",
            retry_after=usual_seconds(catalogue, kind),
        )
