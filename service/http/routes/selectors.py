"""`/v1/selectors` and `/v1/select`: fit, inspect, and select without cooking."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from starlette.concurrency import run_in_threadpool

from registry.catalogue.rows import JobRow, SelectorRow
from registry.cook.choose import with_note
from registry.errors import Busy, Forbidden, Unavailable
from registry.pools import missing_members, pool_base, pool_id, pool_spec, spec_digest
from registry.samples import CheckedSample, check_sample
from registry.select import Chosen, encoder_for, latest, select
from registry.spec import GmmSpec, PoolRequest, PoolSpec, SelectorSpec
from registry.uploads import BlobReader
from service.http.auth import Principal, Reader, Writer
from service.http.paging import Cursor, Limit, page_size
from service.http.schemas.jobs import Job, job_body
from service.http.schemas.selectors import FitRequest, Selected, Selector, SelectorList, SelectRequest, selector_body
from service.http.state import State
from service.http.waiting import finished, wait_of
from service.jobs.runner import FINAL, result_of
from service.limits import intake_limits

router = APIRouter(prefix="/v1", tags=["selectors"])


@router.post("/selectors", status_code=201, response_model=Selector | Job, responses={202: {"model": Job}})
async def fit_selector(response: Response, body: FitRequest, runtime: State, who: Writer) -> Selector | Job:
    """Fit a selector over a pool: 201, or 202 and the job where it takes longer than `wait`."""
    seconds = wait_of(body.wait, runtime)
    job = await run_in_threadpool(_enqueue_fit, runtime, who, body.selector, body.pool)
    row = await finished(runtime, job.id, seconds)
    if row.state not in FINAL:
        response.status_code = 202
        return job_body(row)
    return await run_in_threadpool(_fitted, runtime, result_of(row)["selector"])


def _enqueue_fit(runtime: State, who: Principal, spec: SelectorSpec, request: PoolRequest) -> JobRow:
    base, pool = pool_of(runtime, who, request)
    with runtime.database.write() as catalogue:
        return catalogue.jobs.enqueue(
            "fit",
            {"base": base, "pool": pool.model_dump(mode="json"), "spec": spec.model_dump(mode="json")},
            namespace=home_of(who),
            created_by=who.key_id,
            dedupe_key=f"fit:{pool_id(pool)}:{spec_digest(spec)}:{home_of(who)}",
        )


def pool_of(runtime: State, who: Principal, request: PoolRequest) -> tuple[str, PoolSpec]:
    """The base id and the pool a request means."""
    shapes = runtime.shapes()
    base = pool_base(request, shapes)
    return base, pool_spec(request, shapes[base], who.namespaces)


def home_of(who: Principal) -> str:
    """The namespace of what a key makes without naming one: its first, or `default` for a key that sees all."""
    return "default" if who.namespaces is None else who.namespaces[0]


def _fitted(runtime: State, selector_id: str) -> Selector:
    with runtime.database.read() as catalogue:
        row: SelectorRow = catalogue.selectors.get(None, selector_id)
        return selector_body(row, missing_members(catalogue, row))


@router.get("/selectors")
def list_selectors(runtime: State, who: Reader, limit: Limit = None, cursor: Cursor = None) -> SelectorList:
    """Fitted selectors whose whole pool this key sees, newest first."""
    size = page_size(limit, runtime)
    with runtime.database.read() as catalogue:
        page = catalogue.selectors.list(who.namespaces, limit=size, cursor=cursor)
        data = [selector_body(row, missing_members(catalogue, row)) for row in page.rows]
    return SelectorList(data=data, next_cursor=page.next_cursor)


@router.get("/selectors/{id}")
def get_selector(id: str, runtime: State, who: Reader) -> Selector:
    """One fitted selector: its members, its report, and what it does not know yet."""
    with runtime.database.read() as catalogue:
        row = catalogue.selectors.get(who.namespaces, id)
        return selector_body(row, missing_members(catalogue, row))


@router.post("/select", response_model=Selected | Job, responses={202: {"model": Job}})
async def select_adapters(response: Response, body: SelectRequest, runtime: State, who: Reader) -> Selected | Job:
    """Which adapters of a pool a sample belongs to.

    A pool never fitted is fitted first (202 beyond `wait`). That takes scope write: from then on it is refitted.
    """
    seconds = wait_of(body.wait, runtime)
    spec = body.selector or GmmSpec()
    sample = await run_in_threadpool(_checked, runtime, who, body)
    if not await run_in_threadpool(_is_fitted, runtime, who, spec, body.pool):
        if not who.has("write"):
            raise Forbidden("This pool was never fitted with this selector; that takes a key with the scope 'write'.")
        job = await run_in_threadpool(_enqueue_fit, runtime, who, spec, body.pool)
        row = await finished(runtime, job.id, seconds)
        if row.state not in FINAL:
            response.status_code = 202
            return job_body(row)
        result_of(row)
    return await run_in_threadpool(_select, runtime, who, spec, sample, body)


def _is_fitted(runtime: State, who: Principal, spec: SelectorSpec, request: PoolRequest) -> bool:
    base, pool = pool_of(runtime, who, request)
    encoder = encoder_for(spec, runtime.encoders(base))
    return latest(pool, spec, None if encoder is None else encoder.digest, runtime.database) is not None


def _checked(runtime: State, who: Principal, body: SelectRequest) -> CheckedSample:
    """The sample, refused before anything is fitted for it."""
    base, _ = pool_of(runtime, who, body.pool)
    reader = BlobReader(runtime.database, runtime.blobs, who.namespaces, intake_limits(runtime.settings))
    return check_sample(body.sample, reader, runtime.encoders(base))


def _select(runtime: State, who: Principal, spec: SelectorSpec, sample: CheckedSample, body: SelectRequest) -> Selected:
    base, pool = pool_of(runtime, who, body.pool)
    if not runtime.selections.acquire(blocking=False):
        raise Busy("As many samples as this server embeds at once are being embedded; try again.", retry_after=2)
    try:
        chosen: Chosen = select(
            sample,
            pool=pool,
            spec=spec,
            options=body.options,
            encoders=runtime.encoders(base),
            database=runtime.database,
            blobs=runtime.blobs,
            fit=_not_here,
        )
    finally:
        runtime.selections.release()
    return Selected(
        selection=with_note(chosen, runtime.database),
        sample=chosen.report_of(sample),
        selector=chosen.selector.id,
        fitted_at=chosen.selector.fitted_at,
        not_yet_included=list(chosen.not_yet_included),
    )


def _not_here(*_: Any) -> SelectorRow:
    raise Unavailable("The pool's selector was replaced while this was asked: ask again.")
