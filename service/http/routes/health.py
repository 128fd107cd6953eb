"""`/healthz`, `/readyz` and `/metrics`: liveness, readiness, and Prometheus metrics.

Liveness does not depend on the engine or the database, so that a busy server is not killed.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from registry.errors import Forbidden
from service.http.app_services import AppServices
from service.http.readiness import Readiness
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.health import Alive, Ready
from service.http.security.auth import needs

router = APIRouter(tags=["health"], route_class=CheckedRoute)
_admin = needs("admin")


async def _may_read_metrics(request: Request, services: AppServices) -> None:
    if services.settings.metrics_public:
        return
    principal = await _admin(request)
    if principal.namespaces is not None:
        raise Forbidden(
            "The figures are of the whole server: reading them takes a key with scope 'admin' and all namespaces."
        )


@router.get("/healthz")
async def healthz() -> Alive:
    """Answers while the process runs. Needs no key."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Ready}})
def readyz(request: Request, response: Response, services: AppServices) -> Ready:
    """Ready if the database and the blobs can be used and every base model in memory computes a token. Needs no key."""
    readiness: Readiness = request.app.state.readiness
    ready = readiness.of(services)
    if ready.status != "ready":
        response.status_code = 503
    return ready


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(request: Request, _: Annotated[None, Depends(_may_read_metrics)]) -> Response:
    """Prometheus metrics of the whole server.

    Requires scope admin and all namespaces unless `SOUP_METRICS_PUBLIC` is set.
    """
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
