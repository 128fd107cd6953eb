"""`POST /v1/collect`: remove expired objects now, or only count them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from fastapi import APIRouter

from registry.errors import Forbidden
from registry.lifecycle.collect import collect, would_collect
from service.http.app_services import AppServices
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.collections import Collection, CollectRequest
from service.http.security.auth import Admin
from service.jobs.training_requests import blobs_in_use

router = APIRouter(prefix="/v1/collect", tags=["adapters"], route_class=CheckedRoute)


@router.post("")
def collect_now(body: CollectRequest, services: AppServices, principal: Admin) -> Collection:
    """Remove objects that have expired by the server's settings, as the server does every hour; `dry_run` only counts
    them.

    Requires a key with all namespaces. To restore a removed object, store or cook it again.
    """
    if principal.namespaces is not None:
        raise Forbidden("A collection is of the whole server: it takes a key with scope 'admin' and all namespaces.")
    registry, moment = services.registry, datetime.now(UTC)
    if body.dry_run:
        collected = would_collect(registry, moment, used=blobs_in_use)
    else:
        caller = principal.caller
        collected = collect(registry, moment, used=blobs_in_use, caller=caller)
        with registry.database.write() as catalogue:
            caller.audit(catalogue, "server.collect", "server", **asdict(collected))
        services.jobs.wake()
    counts = asdict(collected) | {"expired": list(collected.expired), "removed": list(collected.removed)}
    return Collection(dry_run=body.dry_run, **counts)
