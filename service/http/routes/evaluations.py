"""`/v1/evaluations`: evaluations of every adapter of a pool on the samples of all, computed by a job and stored."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from registry.catalogue.rows import JobRow
from registry.errors import InvalidParameter
from registry.evaluate.matrix import pairs_of
from registry.names import Digest, digest_of
from registry.select.requested import pool_of
from registry.spec import BaseId
from registry.spec.frozen import Frozen
from service.access.keys import Principal
from service.http.answers.jobs import requested_job_body
from service.http.app_services import AppServices
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.evaluations import EvaluationList, EvaluationRequest, evaluation_body
from service.http.schemas.jobs import Job
from service.http.security.auth import Reader, Writer
from service.jobs.queue_limits import queue_job

router = APIRouter(prefix="/v1/evaluations", tags=["evaluations"], route_class=CheckedRoute)
KIND = "evaluate"


@router.post("", status_code=202)
def evaluate_pool(response: Response, body: EvaluationRequest, services: AppServices, principal: Writer) -> Job:
    """Queue a job that computes the missing evaluations of a pool; returns 202 and the job.

    Stored evaluations are not computed again. A cancelled or failed job keeps its results so far, and the next job
    continues. A request equal to that of a queued or running job returns that job.
    """
    row = begin_evaluation(services, principal, body)
    services.jobs.wake()
    response.headers["location"] = f"/v1/jobs/{row.id}"
    return requested_job_body(row, principal)


class EvaluationListQuery(Frozen):
    """Filters of a list of evaluations, and its paging."""

    base_model: BaseId | None = None
    namespace: str | None = None
    adapter: Digest | None = None
    """The digest of an adapter."""
    sample: Digest | None = None
    """The digest of a sample."""
    limit: Limit = None
    cursor: Cursor = None


@router.get("")
def list_evaluations(
    services: AppServices, principal: Reader, query: Annotated[EvaluationListQuery, Query()]
) -> EvaluationList:
    """Evaluations, newest first, if the key sees a live version of the adapter and one with the sample."""
    base_model = query.base_model
    if base_model is not None and base_model not in services.bases:
        raise InvalidParameter(
            f"{base_model[:64]!r} is not on the allowlist; this server has: {', '.join(sorted(services.bases))}.",
            param="base_model",
        )
    fingerprint = None if base_model is None else services.bases[base_model].shape.fingerprint
    size, filters = page_size(query.limit, services), query.model_dump(exclude={"base_model", "limit"})
    with services.registry.database.read() as catalogue:
        page = catalogue.evaluations.list(principal.namespaces, base_fingerprint=fingerprint, **filters, limit=size)
    return EvaluationList(data=[evaluation_body(row) for row in page.rows], next_cursor=page.next_cursor)


def begin_evaluation(services: AppServices, principal: Principal, body: EvaluationRequest) -> JobRow:
    """Queue an evaluation of a pool, or return the unfinished job that equals it; raises as `pairs_of` does."""
    base, pool = pool_of(services.registry, principal.caller, body.pool)
    pairs_of(services.registry, pool, passages=body.passages)
    arguments = {
        "base": base.entry.id,
        "pool": pool.model_dump(mode="json"),
        "passages": body.passages,
        "scope": principal.namespaces,
        "request_id": principal.request_id,
    }
    dedupe = f"{KIND}:{digest_of([pool.digest, body.passages])}:{principal.home}"
    with services.registry.database.write() as catalogue:
        active = catalogue.jobs.find_active(dedupe)
        if active is not None:
            catalogue.jobs.add_requester(active.id, principal.key_id, request_id=principal.request_id)
            return active
        enqueue = partial(catalogue.jobs.enqueue, KIND, arguments, dedupe_key=dedupe)
        return queue_job(
            services, catalogue, principal, KIND, enqueue, namespace=principal.home, action="evaluation.ask"
        )
