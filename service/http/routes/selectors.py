"""`/v1/selectors` and `/v1/select`: fit, inspect, and select without cooking."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from registry.catalogue.rows import JobRow, SelectorRow
from registry.cook.choose import with_note
from registry.errors import Busy, Forbidden, Unavailable
from registry.pools import missing_members
from registry.registry import Caller
from registry.samples import CheckedSample, check_sample
from registry.select import encoder_for, latest, pool_of, select
from registry.spec import GmmSpec, PoolRequest, SelectorSpec
from service.http.auth import Reader, Writer
from service.http.paging import Cursor, Limit, page_size
from service.http.schemas.jobs import Job, job_body
from service.http.schemas.selectors import FitRequest, Selected, Selector, SelectorList, SelectRequest, selector_body
from service.http.state import AppParts
from service.http.waiting import finished, wait_of
from service.jobs.runner import FINAL, result_of
from service.keys import Principal

router = APIRouter(prefix="/v1", tags=["selectors"])


@router.post("/selectors", status_code=201, response_model=Selector | Job, responses={202: {"model": Job}})
async def fit_selector(
    request: Request, response: Response, body: FitRequest, parts: AppParts, who: Writer
) -> Selector | Job:
    """Fit a selector over a pool: 201, or 202 and the job where it takes longer than `wait`."""
    seconds = wait_of(body.wait, parts)
    job = await run_in_threadpool(
        _enqueue_fit, parts, who, who.caller(request.state.request_id), body.selector, body.pool
    )
    row = await finished(parts, job.id, seconds)
    if row.state not in FINAL:
        response.status_code = 202
        return job_body(row)
    return await run_in_threadpool(_fitted, parts, result_of(row)["selector"])


def _enqueue_fit(parts: AppParts, who: Principal, caller: Caller, spec: SelectorSpec, request: PoolRequest) -> JobRow:
    base, pool = pool_of(parts.registry, caller, request)
    with parts.registry.database.write() as catalogue:
        return catalogue.jobs.enqueue(
            "fit",
            {"base": base.entry.id, "pool": pool.model_dump(mode="json"), "spec": spec.model_dump(mode="json")},
            namespace=who.home,
            created_by=who.key_id,
            dedupe_key=f"fit:{pool.digest}:{spec.digest}:{who.home}",
        )


def _fitted(parts: AppParts, selector_id: str) -> Selector:
    with parts.registry.database.read() as catalogue:
        row: SelectorRow = catalogue.selectors.get(None, selector_id)
        return selector_body(row, missing_members(catalogue, row))


@router.get("/selectors")
def list_selectors(parts: AppParts, who: Reader, limit: Limit = None, cursor: Cursor = None) -> SelectorList:
    """Fitted selectors whose whole pool this key sees, newest first."""
    size = page_size(limit, parts)
    with parts.registry.database.read() as catalogue:
        page = catalogue.selectors.list(who.namespaces, limit=size, cursor=cursor)
        data = [selector_body(row, missing_members(catalogue, row)) for row in page.rows]
    return SelectorList(data=data, next_cursor=page.next_cursor)


@router.get("/selectors/{id}")
def get_selector(id: str, parts: AppParts, who: Reader) -> Selector:
    """One fitted selector: its members, its report, and what it does not know yet."""
    with parts.registry.database.read() as catalogue:
        row = catalogue.selectors.get(who.namespaces, id)
        return selector_body(row, missing_members(catalogue, row))


@router.post("/select", response_model=Selected | Job, responses={202: {"model": Job}})
async def select_adapters(
    request: Request, response: Response, body: SelectRequest, parts: AppParts, who: Reader
) -> Selected | Job:
    """Which adapters of a pool a sample belongs to.

    A pool never fitted is fitted first (202 beyond `wait`). That takes scope write: from then on it is refitted.
    """
    seconds = wait_of(body.wait, parts)
    caller = who.caller(request.state.request_id)
    sample = await run_in_threadpool(_checked, parts, caller, body)
    if not await run_in_threadpool(_is_fitted, parts, caller, body):
        if not who.has("write"):
            raise Forbidden("This pool was never fitted with this selector; that takes a key with the scope 'write'.")
        spec = body.selector or GmmSpec()
        job = await run_in_threadpool(_enqueue_fit, parts, who, caller, spec, body.pool)
        row = await finished(parts, job.id, seconds)
        if row.state not in FINAL:
            response.status_code = 202
            return job_body(row)
        result_of(row)
    return await run_in_threadpool(_select, parts, caller, sample, body)


def _is_fitted(parts: AppParts, caller: Caller, body: SelectRequest) -> bool:
    spec = body.selector or GmmSpec()
    base, pool = pool_of(parts.registry, caller, body.pool)
    encoder = encoder_for(spec, base.encoders())
    return latest(pool, spec, None if encoder is None else encoder.digest, parts.registry.database) is not None


def _checked(parts: AppParts, caller: Caller, body: SelectRequest) -> CheckedSample:
    """The sample, refused before anything is fitted for it."""
    base, _ = pool_of(parts.registry, caller, body.pool)
    return check_sample(parts.registry, caller, body.sample, encoders=base.encoders())


def _select(parts: AppParts, caller: Caller, sample: CheckedSample, body: SelectRequest) -> Selected:
    if not parts.selections.acquire(blocking=False):
        raise Busy("As many samples as this server embeds at once are being embedded; try again.", retry_after=2)
    try:
        spec = body.selector or GmmSpec()
        chosen = select(parts.registry, caller, sample, pool=body.pool, spec=spec, options=body.options, fit=_not_here)
    finally:
        parts.selections.release()
    return Selected(
        selection=with_note(parts.registry, chosen),
        sample=chosen.report_of(sample),
        selector=chosen.selector.id,
        fitted_at=chosen.selector.fitted_at,
        not_yet_included=list(chosen.not_yet_included),
    )


def _not_here(*_: Any) -> SelectorRow:
    raise Unavailable("The pool's selector was replaced while this was asked: ask again.")
