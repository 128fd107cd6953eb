"""The job that cooks a soup.

The request waits in a blob of its own that is deleted when the job ends, so that no sample of a novel domain outlives
its request; the job's arguments are ids and small parameters.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from registry.cook import cook
from registry.spec import BY_GRADIENTS, CookRequest
from service.jobs.contract import JobContext, JobKind, namespaces_of


def request_bytes(request: dict[str, Any]) -> bytes:
    """A cook request as the bytes of a blob; the nonce gives two equal requests two blobs."""
    return json.dumps({"request": request, "nonce": uuid.uuid4().hex}, ensure_ascii=False).encode()


def _run(context: JobContext) -> dict[str, Any]:
    registry, arguments = context.parts.registry, context.row.arguments
    stored = json.loads(registry.blobs.read(arguments["request"]))
    cooked = cook(
        registry,
        context.caller,
        CookRequest.model_validate(stored["request"]),
        namespace=arguments["namespace"],
        fit=context.fit,
        gradients=context.gradients,
        progress=context.progress,
    )
    return cooked.model_dump(mode="json")


def kind_of(request: CookRequest) -> str:
    """The kind of the job that cooks this request, its effort settled: one that computes gradients is a `search`."""
    return "search" if request.effort in BY_GRADIENTS else "cook"


COOK = JobKind(
    run=_run,
    reach=lambda row: namespaces_of(row.arguments["scope"]),
    clean=lambda parts, row: parts.registry.blobs.delete(row.arguments["request"]),
)
SEARCH = replace(COOK, lane="search")
"""A cook with an effort that computes gradients, for a minute or more: others do not wait behind it."""
