"""`/v1/soups`: cook from a sample or a recipe, and list soups.

Cooking is always a job, so that it survives a restart; the request waits for it and answers with its result.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from registry.catalogue.rows import JobRow
from registry.cook.default_effort import with_default_effort
from registry.errors import InvalidRecipe
from registry.names import split_name
from registry.quotas import check_jobs
from registry.spec import Cooked, CookRequest
from service.access.keys import Principal
from service.http.answers.jobs import requested_job_body, soup_of
from service.http.answers.lineage import lineage_of
from service.http.app_parts import AppServices
from service.http.models.named_models import adapter_named
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import RECIPE, takes
from service.http.requests.paging import Cursor, Limit, page_size
from service.http.requests.pool_waiting import until_selectable
from service.http.requests.waiting import wait_for_job, wait_seconds
from service.http.schemas.adapters import Adapter, AdapterList, Lineage, adapter_body, listed_body
from service.http.schemas.jobs import Job
from service.http.schemas.soups import Soup, SoupRequest
from service.http.security.auth import Reader, Writer
from service.http.thread_turns import in_thread
from service.jobs.cook import check_pool, kind_of, request_bytes
from service.jobs.queue_limits import check_queue
from service.jobs.runner import FINAL, result_of
from service.parts import Services

router = APIRouter(prefix="/v1/soups", tags=["soups"], route_class=CheckedRoute)


@router.post(
    "",
    status_code=201,
    response_model=Soup | Job,
    responses={200: {"model": Soup, "description": "Cooked before, or nothing new"}, 202: {"model": Job}},
)
@takes(RECIPE)
async def cook_soup(
    request: Request, response: Response, body: SoupRequest, services: AppServices, principal: Writer
) -> Soup | Job:
    """Cook: 201 for a new soup, 200 where nothing new was stored (known, abstained, one adapter), 202 beyond `wait`."""
    seconds = wait_seconds(body.wait, services)
    caller = principal.caller(request.state.request_id)
    _check(services, principal, body)
    remaining = await until_selectable(
        services,
        principal.key_id,
        lambda: check_pool(services.registry, caller, body),
        lambda: _check_queue(services, principal),
        seconds,
    )
    job = await in_thread(begin_cook, services, principal, body, request.state.request_id)
    row = await wait_for_job(services, job.id, remaining)
    if row.state not in FINAL:
        response.status_code = 202
        return requested_job_body(row, principal)
    cooked = Cooked.model_validate(result_of(row))
    response.status_code = 201 if cooked.created else 200
    return await in_thread(soup_of, services, cooked)


def begin_cook(services: Services, principal: Principal, body: SoupRequest, request_id: str) -> JobRow:
    """Store the request as a blob and queue the job that cooks it; raises for requests that can be refused at once."""
    if body.name and "/" not in body.name:
        body = body.model_copy(update={"name": f"{principal.home}/{body.name}"})
    namespace = _check(services, principal, body)
    request = with_default_effort(services.registry, body, namespace)
    kind = kind_of(services.registry, principal.caller(request_id), request)
    no_owner = {"owner"} if body.owner is None else None  # a worker of the last release refuses an unknown field
    values = body.model_dump(mode="json", exclude=no_owner)
    stored = {name: value for name, value in values.items() if name in CookRequest.model_fields}
    blob = services.registry.blobs.put_bytes(request_bytes(stored))
    arguments = {
        "request": blob,
        "namespace": namespace,
        "scope": principal.namespaces,
        "request_id": request_id,
        "effort": request.effort,
    }
    try:
        with services.registry.database.write() as catalogue:
            check_queue(catalogue, services.settings, kind, principal.key_id)
            job = catalogue.jobs.enqueue(kind, arguments, namespace=namespace, created_by=principal.key_id)
            check_jobs(catalogue, services.registry.quotas, kind, key_id=principal.key_id, namespace=namespace)
            principal.caller(request_id).audit(catalogue, "soup.ask", job.id, namespace=namespace, name=body.name)
            return job
    except BaseException:
        services.registry.blobs.delete(blob)  # there is no job that would: a sample does not outlive its request
        raise


def _check(services: Services, principal: Principal, body: SoupRequest) -> str:
    """Return the namespace of the soup; raises for requests that can be refused without reading the catalogue."""
    namespace = split_name(body.name)[0] if body.name and "/" in body.name else principal.home
    principal.check_write(namespace)
    if body.recipe is not None and len(body.recipe.ingredients) > services.settings.max_ingredients:
        raise InvalidRecipe(
            f"A recipe has at most {services.settings.max_ingredients} ingredients here, this one has "
            f"{len(body.recipe.ingredients)}.",
            param="recipe",
        )
    return namespace


def _check_queue(services: Services, principal: Principal) -> None:
    """Raise Busy if no cook could be queued whose pool is to be fitted first, which is a `search`."""
    with services.registry.database.read() as catalogue:
        check_queue(catalogue, services.settings, "search", principal.key_id)


@router.get("")
def list_soups(
    services: AppServices, principal: Reader, q: str | None = None, limit: Limit = None, cursor: Cursor = None
) -> AdapterList:
    """Live soups this key sees, newest first."""
    size = page_size(limit, services)
    with services.registry.database.read() as catalogue:
        page = catalogue.adapters.list(principal.namespaces, kind="soup", q=q, limit=size, cursor=cursor)
    return AdapterList(data=[listed_body(row) for row in page.rows], next_cursor=page.next_cursor)


@router.get("/{ns}/{name}")
def get_soup(ns: str, name: str, services: AppServices, principal: Reader) -> Adapter:
    """One soup; the same as the adapter of that name."""
    return adapter_body(adapter_named(services, principal, ns, name))


@router.get("/{ns}/{name}/lineage")
def get_soup_lineage(ns: str, name: str, services: AppServices, principal: Reader) -> Lineage:
    """What the soup was mixed from, and on what evidence."""
    return lineage_of(services, principal.namespaces, adapter_named(services, principal, ns, name))
