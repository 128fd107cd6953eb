"""The job that cooks a soup.

The request is stored in a blob that is deleted when the job ends, so that no sample of a novel domain outlives its
request. The job's arguments are ids and small parameters.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

from registry.context import Caller, Registry
from registry.cook.cook import cook
from registry.cook.ingredients import selector_of
from registry.cook.statistics import statistic_kind
from registry.errors import InvalidParameter, NotFound
from registry.select.fitted import current_selector, latest_selector
from registry.select.requested import check_selectable, requested_selector
from registry.spec import BY_GRADIENTS, CookRequest
from service.jobs.contract import JobContext, JobKind, namespaces_of


def request_bytes(request: dict[str, Any]) -> bytes:
    """Serialize a cook request for its blob; a nonce gives two equal requests two blobs."""
    return json.dumps({"request": request, "nonce": uuid.uuid4().hex}, ensure_ascii=False).encode()


def _run(context: JobContext) -> dict[str, Any]:
    registry, arguments = context.services.registry, context.row.arguments
    if not registry.blobs.has(arguments["request"]):
        raise NotFound("The text of this request is no longer stored (a restore leaves texts out): send it again.")
    stored = json.loads(registry.blobs.read(arguments["request"]))
    cooked = cook(
        registry,
        context.caller,
        CookRequest.model_validate(stored["request"]),
        namespace=arguments["namespace"],
        computations=context.computations,
        progress=context.progress,
        queued_effort=arguments.get("effort"),
    )
    return cooked.model_dump(mode="json")


def kind_of(registry: Registry, caller: Caller, request: CookRequest) -> str:
    """The kind of the job that cooks this request, whose effort is settled: `search` if it takes minutes, else `cook`.

    A cook takes minutes if it computes gradients or statistics, or has to fit its pool first. Raises InvalidParameter,
    Forbidden or Unavailable if the caller cannot use the pool.
    """
    takes_minutes = request.effort in BY_GRADIENTS or statistic_kind(request.mixing) is not None
    if request.recipe is None:
        requested = requested_selector(registry, caller, request.pool, selector_of(request))
        takes_minutes = takes_minutes or current_selector(registry, requested) is None
    return "search" if takes_minutes else "cook"


def check_pool(registry: Registry, caller: Caller, request: CookRequest) -> None:
    """Raise Unavailable if all members of the pool have samples that are still to be embedded.

    The cook itself raises for other problems.
    """
    if request.recipe is not None or request.also:
        return
    requested = requested_selector(registry, caller, request.pool, selector_of(request))
    if latest_selector(registry.database, requested) is None:
        with suppress(InvalidParameter):
            check_selectable(registry.database, requested)


COOK = JobKind(
    run=_run,
    reach=lambda row: namespaces_of(row.arguments["scope"]),
    clean=lambda services, row: services.registry.blobs.delete(row.arguments["request"]),
)
SEARCH = replace(COOK, lane="search")
"""A cook that takes a minute or more, as it computes gradients or fits a pool, in a lane of its own."""
