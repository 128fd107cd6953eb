"""Whether a key may queue another job of a kind: what one key, and all together, may have waiting is bounded.

Asked by whatever queues a job for a request, in the transaction that does, where there is one.
"""

from __future__ import annotations

import math

from registry.catalogue import Catalogue
from registry.errors import Busy
from service.jobs.contract import workers_of
from service.jobs.kinds import KINDS
from service.settings import Settings

UNKNOWN_SECONDS = 5.0
"""What a job takes of a kind of which none has ended yet."""
MOST_SECONDS = 3600


def check_room(catalogue: Catalogue, settings: Settings, kind: str, key_id: str, *, most: int | None = None) -> None:
    """Raises Busy where the key, or all keys together, have as many jobs of this kind as may wait and run.

    `most` is how many all may have, where that is not the setting for all kinds.
    """
    mine = catalogue.jobs.count_active(kind, created_by=key_id)
    if mine >= settings.job_queue_per_key:
        raise Busy(
            f"{mine} jobs of kind {kind!r} that this key asked for wait or run, and the limit is "
            f"{settings.job_queue_per_key} (SOUP_JOB_QUEUE_PER_KEY): wait until one has ended, or cancel one.",
            retry_after=_seconds(catalogue, settings, kind, turns=catalogue.jobs.count_waiting_namespaces(kind)),
        )
    every, limit = catalogue.jobs.count_active(kind), settings.job_queue if most is None else most
    if every >= limit:
        raise Busy(
            f"{every} jobs of kind {kind!r} wait or run here, and the limit is {limit}: try again when one has ended.",
            retry_after=_seconds(catalogue, settings, kind, turns=1),
        )


def _seconds(catalogue: Catalogue, settings: Settings, kind: str, *, turns: int) -> int:
    """In how many seconds a job ends, after so many turns of others, as long as the last ones took."""
    each = catalogue.jobs.mean_seconds(kind)
    workers = max(1, workers_of(settings)[KINDS[kind].lane])
    found = (UNKNOWN_SECONDS if each is None else each) * max(1, turns) / workers
    return min(MOST_SECONDS, max(1, math.ceil(found)))
