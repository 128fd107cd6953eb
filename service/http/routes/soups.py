"""`/v1/soups`: cook from a sample or a recipe, and list soups.

Cooking is always a job, so that it survives a restart; the request waits for it and answers with its result.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response

from registry.spec import Cooked
from service.http.answers.jobs import soup_of
from service.http.answers.lineage import lineage_of
from service.http.answers.waiting import run_pool_job, wait_seconds
from service.http.app_services import AppServices
from service.http.models.named_models import adapter_named
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import RECIPE, takes
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.adapters import Adapter, AdapterList, Lineage, adapter_body, listed_body
from service.http.schemas.jobs import Job
from service.http.schemas.soups import Soup, SoupRequest
from service.http.security.auth import Reader, Writer
from service.http.thread_turns import in_thread
from service.jobs.cook import check_pool
from service.jobs.cook_requests import begin_cook, check_cook

router = APIRouter(prefix="/v1/soups", tags=["soups"], route_class=CheckedRoute)


@router.post(
    "",
    status_code=201,
    response_model=Soup | Job,
    responses={200: {"model": Soup, "description": "Cooked before, or nothing new"}, 202: {"model": Job}},
)
@takes(RECIPE)
async def cook_soup(response: Response, body: SoupRequest, services: AppServices, principal: Writer) -> Soup | Job:
    """Cook a soup.

    Returns 201 for a new soup, 200 if nothing new was stored (known soup, base model or one adapter), and 202 with the
    job if cooking takes longer than `wait`.
    """
    seconds = wait_seconds(body.wait, services)
    check_cook(services, principal, body)
    result = await run_pool_job(
        services,
        principal,
        response,
        kind="search",  # the job's kind if the pool must be fitted first
        check_pool=partial(check_pool, services.registry, principal.caller, body),
        enqueue=partial(begin_cook, services, principal, body),
        seconds=seconds,
    )
    if isinstance(result, Job):
        return result
    cooked = Cooked.model_validate(result)
    response.status_code = 201 if cooked.created else 200
    return await in_thread(soup_of, services, cooked, principal.namespaces)


@router.get("")
def list_soups(
    services: AppServices, principal: Reader, q: str | None = None, limit: Limit = None, cursor: Cursor = None
) -> AdapterList:
    """Live soups that this key sees, newest first."""
    size = page_size(limit, services)
    with services.registry.database.read() as catalogue:
        page = catalogue.adapters.list(principal.namespaces, kind="soup", q=q, limit=size, cursor=cursor)
    return AdapterList(data=[listed_body(row) for row in page.rows], next_cursor=page.next_cursor)


@router.get("/{ns}/{name}")
def get_soup(ns: str, name: str, services: AppServices, principal: Reader) -> Adapter:
    """One soup, in the same form as an adapter."""
    return adapter_body(adapter_named(services, principal, ns, name))


@router.get("/{ns}/{name}/lineage")
def get_soup_lineage(ns: str, name: str, services: AppServices, principal: Reader) -> Lineage:
    """The ingredients of a soup, and the evidence of its cooks."""
    return lineage_of(services, principal.namespaces, adapter_named(services, principal, ns, name))
