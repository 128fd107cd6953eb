"""`/v1/keys`: make, list and revoke keys (scope admin). A secret is shown once, when it is made."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request

from registry.catalogue import KeyRow
from registry.catalogue.rows import JobRow
from registry.errors import Conflict, Forbidden, InvalidParameter, NotFound
from registry.names import RESERVED_NAMESPACES
from service.http.app_parts import AppParts
from service.http.auth import Admin
from service.http.bodies import CheckedRoute
from service.http.schemas.keys import CreatedKey, Key, KeyList, NewKey
from service.jobs.runner import after_withdrawal, withdraw
from service.keys import SHOWN, Principal, new_secret, present, secret_sha256

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=CheckedRoute)
LONGEST = timedelta(days=3660)
"""A key that expires does so within ten years."""


@router.post("", status_code=201)
def create_key(request: Request, body: NewKey, parts: AppParts, who: Admin) -> CreatedKey:
    """Make a key. Its secret is in this answer and nowhere else."""
    _check(body, who)
    secret = new_secret()
    namespaces = None if body.namespaces is None else tuple(dict.fromkeys(body.namespaces))
    with parts.registry.database.write() as catalogue:
        row = catalogue.keys.add(
            body.name,
            secret_sha256(secret),
            namespaces=namespaces,
            scopes=frozenset(body.scopes),
            prefix=secret[:SHOWN],
            expires_at=body.expires_at,
        )
        expires = None if row.expires_at is None else row.expires_at.isoformat()
        detail: dict[str, Any] = {
            "name": body.name, "namespaces": body.namespaces, "scopes": sorted(body.scopes), "expires_at": expires
        }  # fmt: skip
        who.caller(request.state.request_id).audit(catalogue, "key.create", row.id, **detail)
    return CreatedKey(**_key(row).model_dump(), secret=secret)


@router.get("")
def list_keys(parts: AppParts, who: Admin) -> KeyList:
    """Every key this key may manage, revoked ones included, without secrets."""
    with parts.registry.database.read() as catalogue:
        rows = catalogue.keys.list()
    return KeyList(data=[_key(row) for row in rows if who.manages(row.namespaces)])


@router.delete("/{id}")
def revoke_key(request: Request, id: str, parts: AppParts, who: Admin) -> Key:
    """Revoke a key, from the next request on. Revoking twice is the same as once; the last admin key stays (409).

    Its queued and running jobs are cancelled, but for those that another key asked for too, and for the embeddings and
    refits of what it has pushed.
    """
    cancelled: list[JobRow] = []
    with parts.registry.database.write() as catalogue:
        found = [row for row in catalogue.keys.list() if row.id == id and who.manages(row.namespaces)]
        if not found:
            raise NotFound("There is no such key, or this key may not manage it.", param="id")
        row = found[0]
        if [one.id for one in catalogue.keys.admins()] == [id]:
            raise Conflict(
                f"Key {id} is the last one with scope 'admin' and all namespaces that does not expire: make another "
                "before this one is revoked.",
                param="id",
            )
        if row.revoked_at is None:
            row = catalogue.keys.revoke(id)
            cancelled = withdraw(catalogue, id)
            detail: dict[str, Any] = {"name": row.name, "jobs_cancelled": len(cancelled)}
            who.caller(request.state.request_id).audit(catalogue, "key.revoke", id, **detail)
    after_withdrawal(parts, cancelled)
    return _key(row)


def _check(body: NewKey, who: Principal) -> None:
    namespaces = None if body.namespaces is None else tuple(body.namespaces)
    if namespaces == ():
        raise InvalidParameter("A key without any namespace sees nothing; null means all.", param="namespaces")
    reserved = sorted(RESERVED_NAMESPACES.intersection(namespaces or ()))
    if reserved:
        raise InvalidParameter(f"Namespace '{reserved[0]}' is reserved.", param="namespaces")
    if not who.manages(namespaces):
        raise Forbidden("This key can only make keys for namespaces that it sees itself.", param="namespaces")
    _check_end(body.expires_at, who)


def _check_end(expires_at: datetime | None, who: Principal) -> None:
    """Raises unless a key that ends then (None: never) may be made: ahead of now, and not beyond its maker's end."""
    if expires_at is not None and not present() < expires_at <= present() + LONGEST:
        raise InvalidParameter(
            f"expires_at must lie ahead, by at most {LONGEST.days} days; leave it out for a key that does not expire.",
            param="expires_at",
        )
    if who.expires_at is not None and (expires_at is None or expires_at > who.expires_at):
        raise Forbidden(
            f"This key expires on {who.expires_at.isoformat()} and can only make keys that expire by then.",
            param="expires_at",
        )


def _key(row: KeyRow) -> Key:
    return Key.model_validate(asdict(row) | {"scopes": sorted(row.scopes)}, strict=False)
