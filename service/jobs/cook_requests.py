"""Requests for cooks: checked without reading the sample, stored as a blob, and queued as a job.

Called by the soups route and the cook page; `service.jobs.cook` runs the jobs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from registry.catalogue.rows import JobRow
from registry.cook.default_effort import with_default_effort
from registry.errors import Busy, InvalidRecipe, NotFound, Unavailable
from registry.names import split_name
from registry.spec import CookRequest
from service.access.keys import Principal
from service.jobs.cook import kind_of, request_bytes
from service.jobs.queue_limits import queue_job
from service.services import Services


def begin_cook(services: Services, principal: Principal, request: CookRequest) -> JobRow:
    """Queue the job that cooks a request; raises for requests that can be refused at once."""
    if request.name and "/" not in request.name:
        request = request.model_copy(update={"name": f"{principal.home}/{request.name}"})
    namespace = check_cook(services, principal, request)
    settled = with_default_effort(services.registry, request, namespace)
    kind = kind_of(services.registry, principal.caller, settled)
    blob = services.registry.blobs.put_bytes(request_bytes(_stored_fields(request)))
    arguments = {
        "request": blob,
        "namespace": namespace,
        "scope": principal.namespaces,
        "request_id": principal.request_id,
        "effort": settled.effort,
    }
    job: JobRow | None = None
    try:
        with services.registry.database.write() as catalogue:
            enqueue = partial(catalogue.jobs.enqueue, kind, arguments)
            job = queue_job(
                services,
                catalogue,
                principal,
                kind,
                enqueue,
                namespace=namespace,
                action="soup.ask",
                name=request.name,
            )
    except BaseException:
        if job is None or not _may_be_queued(services, job):
            services.registry.blobs.delete(blob)  # no job will: a sample must not outlive its request
        raise
    return job


def check_cook(services: Services, principal: Principal, request: CookRequest) -> str:
    """Return the namespace of the soup; raises for requests that can be refused without reading the catalogue."""
    namespace = split_name(request.name)[0] if request.name and "/" in request.name else principal.home
    principal.check_write(namespace)
    if request.recipe is not None and len(request.recipe.ingredients) > services.settings.max_ingredients:
        raise InvalidRecipe(
            f"A recipe has at most {services.settings.max_ingredients} ingredients here, this one has "
            f"{len(request.recipe.ingredients)}.",
            param="recipe",
        )
    return namespace


def _stored_fields(request: CookRequest) -> dict[str, Any]:
    """The fields that the client set and the job reads; a worker of the last release refuses those it does not know."""
    return request.model_dump(mode="json", exclude_unset=True, include=set(CookRequest.model_fields))


def _may_be_queued(services: Services, job: JobRow) -> bool:
    """Return True if a job whose commit failed is stored all the same, or the database cannot tell."""
    try:
        with services.registry.database.write() as catalogue:  # its lock waits for the lost transaction to end
            catalogue.jobs.get(None, job.id)
            return True
    except NotFound:
        return False
    except (Busy, Unavailable):
        return True
