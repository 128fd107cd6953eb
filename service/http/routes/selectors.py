"""`/v1/selectors` and `/v1/select`: fit, inspect, and select without cooking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Response

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow, Namespaces, PooledRow, SelectorRow
from registry.context import BaseModel, Caller
from registry.cook.ingredients import with_note
from registry.errors import Forbidden, Unavailable
from registry.samples.sample import CheckedSample, check_sample, clean_sample
from registry.select.fitted import current_selector, latest_selector
from registry.select.pools import FitTarget, enqueue_fit, members_of, missing_members
from registry.select.requested import RequestedSelector, check_selectable, requested_selector
from registry.select.select import SelectQuery, select_from_pool
from registry.selectors.ranking import LISTED
from registry.spec import PoolSpec
from service.access.keys import Principal
from service.http.answers.waiting import run_pool_job, wait_seconds
from service.http.app_services import AppServices
from service.http.models.inference_limits import limit_embeddings
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import LARGE, takes
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.adapters import listed_body
from service.http.schemas.jobs import Job
from service.http.schemas.selectors import (
    FitRequest,
    Near,
    Nearest,
    NearestRequest,
    Selected,
    Selector,
    SelectorList,
    SelectRequest,
    selector_body,
)
from service.http.security.auth import Reader, Writer
from service.http.thread_turns import in_thread
from service.jobs.queue_limits import queue_job

router = APIRouter(prefix="/v1", tags=["selectors"], route_class=CheckedRoute)


@router.post("/selectors", status_code=201, response_model=Selector | Job, responses={202: {"model": Job}})
async def fit_selector(
    response: Response, body: FitRequest, services: AppServices, principal: Writer
) -> Selector | Job:
    """Fit a selector over a pool: 201, or 202 and the job if it takes longer than `wait`."""
    fitted = await _fit(response, body, services, principal)
    return fitted if isinstance(fitted, Job) else await in_thread(_selector, services, None, fitted)


@router.get("/selectors")
def list_selectors(
    services: AppServices, principal: Reader, limit: Limit = None, cursor: Cursor = None
) -> SelectorList:
    """Fitted selectors whose whole pool this key sees, newest first."""
    size = page_size(limit, services)
    with services.registry.database.read() as catalogue:
        page = catalogue.selectors.list(principal.namespaces, limit=size, cursor=cursor)
        data = _bodies(services, catalogue, page.rows)
    return SelectorList(data=data, next_cursor=page.next_cursor)


@router.get("/selectors/{id}")
def get_selector(id: str, services: AppServices, principal: Reader) -> Selector:
    """One fitted selector: its members, its report, and the adapters of its pool that it does not include yet."""
    return _selector(services, principal.namespaces, id)


@router.post("/select", response_model=Selected | Job, responses={202: {"model": Job}})
@takes(LARGE)
async def select_adapters(
    response: Response, body: SelectRequest, services: AppServices, principal: Reader
) -> Selected | Job:
    """Select the adapters of a pool that fit a sample.

    If the pool has no fitted selector, one is fitted first (202 if that takes longer than `wait`). That requires scope
    write, because pushes refit the selector from then on. An idle selector whose pool has changed is also fitted first.
    """
    caller = principal.caller

    def check(base: BaseModel) -> CheckedSample:
        return check_sample(services.registry, caller, body.sample, encoders=base.encoders(), bos=base.bos, novel=True)

    sample = await _sample_for(response, body, services, principal, check)
    return sample if isinstance(sample, Job) else await in_thread(_selected, services, caller, sample, body)


@router.post("/adapters/search", response_model=Nearest | Job, responses={202: {"model": Job}}, tags=["adapters"])
async def nearest_adapters(
    response: Response, body: NearestRequest, services: AppServices, principal: Reader
) -> Nearest | Job:
    """Rank adapters by the similarity of their samples to a text, with the pool's cosine selector; one text is enough.

    There is no threshold: the first adapters may be far from the text. Members are as in `/v1/select`: the newest
    adapter with a sample for each domain label of a namespace. If the pool has no fitted selector, one is fitted first.
    """
    limits = services.registry.limits.sample.with_single_sequence

    def check(base: BaseModel) -> CheckedSample:
        return clean_sample(body.texts, limits, bos=base.bos, novel=True)

    caller = principal.caller
    sample = await _sample_for(response, body, services, principal, check)
    return sample if isinstance(sample, Job) else await in_thread(_nearest, services, caller, sample, body)


# --- what the routes share ------------------------------------------------------------------------


async def _sample_for(
    response: Response,
    body: SelectRequest | NearestRequest,
    services: AppServices,
    principal: Principal,
    check: Callable[[BaseModel], CheckedSample],
) -> CheckedSample | Job:
    """Return the checked sample once the pool has a fitted selector, or the job that fits one if that takes long."""
    sample, is_fitted = await in_thread(_prepare, services, principal, body, check)
    fitted = None if is_fitted else await _fit(response, body, services, principal)
    return fitted if isinstance(fitted, Job) else sample


def _prepare(
    services: AppServices,
    principal: Principal,
    body: SelectRequest | NearestRequest,
    check: Callable[[BaseModel], CheckedSample],
) -> tuple[CheckedSample, bool]:
    """Check a request before anything is fitted for it; return its sample and True if a fitted selector can answer."""
    wait_seconds(body.wait, services)  # too long a wait is refused even if nothing is waited for
    requested = requested_selector(services.registry, principal.caller, body.pool, body.spec)
    sample = check(requested.base)
    if latest_selector(services.registry.database, requested) is None and not principal.has("write"):
        raise Forbidden("This pool has no fit of this selector, and a fit needs a key with the scope 'write'.")
    return sample, current_selector(services.registry, requested) is not None


async def _fit(
    response: Response,
    body: FitRequest | SelectRequest | NearestRequest,
    services: AppServices,
    principal: Principal,
) -> str | Job:
    """Fit the pool; return the id of its selector, or the job if that takes longer than the request waits."""
    seconds = wait_seconds(body.wait, services)
    requested = await in_thread(requested_selector, services.registry, principal.caller, body.pool, body.spec)
    result = await run_pool_job(
        services,
        principal,
        response,
        kind="fit",
        check_pool=partial(check_selectable, services.registry.database, requested),
        enqueue=partial(_enqueue_fit, services, principal, requested),
        seconds=seconds,
    )
    return result if isinstance(result, Job) else str(result["selector"])


def _enqueue_fit(services: AppServices, principal: Principal, requested: RequestedSelector) -> JobRow:
    with services.registry.database.write() as catalogue:
        target = FitTarget(requested.base.entry.id, requested.pool, requested.spec)
        return queue_job(
            services,
            catalogue,
            principal,
            "fit",
            partial(enqueue_fit, catalogue, target, is_requested=True),
            namespace=principal.home,
            action="selector.ask",
            selector=requested.spec.kind,
        )


def _selector(services: AppServices, visible: Namespaces, selector_id: str) -> Selector:
    with services.registry.database.read() as catalogue:
        return _bodies(services, catalogue, [catalogue.selectors.get(visible, selector_id)])[0]


def _bodies(services: AppServices, catalogue: Catalogue, rows: Sequence[SelectorRow]) -> list[Selector]:
    """Return selectors as bodies, with the members they were fitted without and when they were last used."""
    asked_at, now = catalogue.selectors.asked_at([row.id for row in rows]), datetime.now(UTC)

    @cache  # most selectors of a list are fits of a few pools
    def pooled(pool: PoolSpec, encoder_digest: str | None) -> list[PooledRow]:
        return [*members_of(catalogue, pool, encoder_digest).rows, *catalogue.adapters.pending(pool)]

    return [
        selector_body(
            row,
            missing_members(pooled(row.pool, row.encoder_digest), row),
            asked_at=asked_at.get(row.id),
            idle=row.id in asked_at and services.registry.refits.is_idle(asked_at[row.id], now),
        )
        for row in rows
    ]


def _selected(services: AppServices, caller: Caller, sample: CheckedSample, body: SelectRequest) -> Selected:
    with limit_embeddings(services):
        query = SelectQuery(body.pool, body.spec, body.options, listed=None if body.list_all else LISTED, scored=False)
        chosen = select_from_pool(services.registry, caller, sample, query, fit=_no_fit)
    return Selected(
        selection=with_note(services.registry, chosen),
        sample=chosen.report_of(sample),
        selector=chosen.selector.id,
        fitted_at=chosen.selector.fitted_at,
        not_yet_included=list(chosen.not_yet_included),
    )


def _nearest(services: AppServices, caller: Caller, sample: CheckedSample, body: NearestRequest) -> Nearest:
    with limit_embeddings(services):
        query = SelectQuery(body.pool, body.spec, scored=False, include_learnt=True)
        chosen = select_from_pool(services.registry, caller, sample, query, fit=_no_fit)
    ids = {member.digest: member.adapter_id for member in chosen.selector.members}
    best = [(candidate.score, ids[candidate.member.digest]) for candidate in chosen.ranking.ranked[: body.limit]]
    with services.registry.database.read() as catalogue:
        rows = catalogue.adapters.list_by_ids(caller.namespaces, [adapter_id for _, adapter_id in best])
    return Nearest(
        data=[Near(similarity=score, adapter=listed_body(rows[id])) for score, id in best if id in rows],
        encoder=body.encoder,
        selector=chosen.selector.id,
        fitted_at=chosen.selector.fitted_at,
        not_yet_included=list(chosen.not_yet_included),
    )


def _no_fit(*_: Any) -> SelectorRow:
    raise Unavailable("The selector of the pool was replaced during the request: try again.")
