"""`POST /v1/adapters/{ns}/{name}@{version}/purge`: an admin removes a version for good, with its sample's text."""

from __future__ import annotations

from fastapi import APIRouter, Request

from registry.errors import InvalidName
from registry.purge import purge
from service.http.app_parts import AppParts
from service.http.auth import Admin
from service.http.bodies import CheckedRoute
from service.http.named_models import name_ref
from service.http.schemas.adapters import Purged, listed

router = APIRouter(prefix="/v1/adapters", tags=["adapters"], route_class=CheckedRoute)


@router.post("/{ns}/{name}/purge")
def purge_adapter(request: Request, ns: str, name: str, parts: AppParts, who: Admin) -> Purged:
    """Remove a version, `name@version`, for good: row, evidence, weights and sample, as far as nothing else needs them.

    Soups made of it stay and are served, but cannot be rebuilt; they are named, as are those that learnt from its
    sample. There is no way back.
    """
    ref = name_ref(ns, name)
    with parts.registry.database.read() as catalogue:
        row = catalogue.adapters.find(who.namespaces, ref)
    if ref.version is None:
        raise InvalidName(f"Say which version of {ns}/{ref.name} to purge, as {ns}/{ref.name}@1.", param="name")
    done = purge(parts.registry, who.caller(request.state.request_id), row.id)
    parts.jobs.wake()
    soups, tuned = ([one for one in found if who.sees(one.namespace)] for found in (done.not_rebuildable, done.tuned))
    return Purged(
        adapter=listed(done.row),
        blobs=done.blobs,
        bytes=done.bytes,
        not_rebuildable=[one.ref for one in soups],
        tuned_on_sample=[one.ref for one in tuned],
        elsewhere=len(done.not_rebuildable) + len(done.tuned) - len(soups) - len(tuned),
    )
