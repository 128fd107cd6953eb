"""`GET /v1/replicas`: the servers that share the database (scope admin, all namespaces)."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from registry.catalogue.replica_rows import ReplicaRow
from registry.errors import Forbidden
from service.http.app_parts import AppParts
from service.http.auth import Admin
from service.http.bodies import CheckedRoute
from service.http.schemas.replicas import Replica, ReplicaList

router = APIRouter(prefix="/v1/replicas", tags=["health"], route_class=CheckedRoute)


@router.get("")
def list_replicas(parts: AppParts, who: Admin) -> ReplicaList:
    """The servers of the database, with what they serve and have to do. A server on SQLite is alone: there is none."""
    if who.namespaces is not None:
        raise Forbidden("The list is of whole servers: reading it takes a key with scope 'admin' and all namespaces.")
    with parts.registry.database.read() as catalogue:
        return ReplicaList(data=[_shown(row) for row in catalogue.replicas.list()])


def _shown(row: ReplicaRow) -> Replica:
    found = asdict(row)
    beat, read_at = found.pop("beat"), found.pop("read_at")
    silent = (read_at - row.seen_at).total_seconds()
    return Replica(**found, beat_seconds=beat.total_seconds(), silent_seconds=silent)
