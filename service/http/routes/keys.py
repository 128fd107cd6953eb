"""`/v1/keys`: create, list, change, rotate and revoke keys (scope admin).

A secret is shown once, when it is created.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from registry.catalogue import Catalogue, KeyRow
from registry.catalogue.database import BUSY_SECONDS
from registry.catalogue.rows import JobRow
from registry.errors import Busy, Conflict, Forbidden, InvalidParameter
from registry.names import RESERVED_NAMESPACES
from service.access.key_watch import present
from service.access.keys import (
    VISIBLE_CHARACTERS,
    Principal,
    managed_row,
    new_secret,
    replace_admin_secret,
    secret_sha256,
)
from service.http.app_services import AppServices
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.schemas.keys import CreatedKey, Key, KeyList, KeyPatch, NewKey, Rotation
from service.http.security.auth import Admin, needs
from service.jobs.runner import after_withdrawal, withdraw
from service.services import Services

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=CheckedRoute)
Anybody = Annotated[Principal, Depends(needs("read", "write", "infer", "admin"))]
NO_GRACE = Rotation()
MAX_LIFETIME = timedelta(days=3660)
"""Maximum lifetime of a key that expires: ten years."""


@router.post("", status_code=201)
def create_key(body: NewKey, services: AppServices, principal: Admin) -> CreatedKey:
    """Create a key. Only this answer contains its secret."""
    _check_namespaces(body.namespaces, principal)
    _check_expiry(body.expires_at, principal)
    secret = new_secret()
    namespaces = None if body.namespaces is None else tuple(dict.fromkeys(body.namespaces))
    with services.registry.database.write() as catalogue:
        row = catalogue.keys.add(
            body.name,
            secret_sha256(secret),
            namespaces=namespaces,
            scopes=frozenset(body.scopes),
            prefix=secret[:VISIBLE_CHARACTERS],
            expires_at=body.expires_at,
        )
        expires = None if row.expires_at is None else row.expires_at.isoformat()
        detail: dict[str, Any] = {
            "name": body.name,
            "namespaces": body.namespaces,
            "scopes": sorted(body.scopes),
            "expires_at": expires,
        }
        principal.caller.audit(catalogue, "key.create", row.id, **detail)
    return CreatedKey(**_key(row).model_dump(), secret=secret)


@router.get("")
def list_keys(services: AppServices, principal: Admin, limit: Limit = None, cursor: Cursor = None) -> KeyList:
    """The keys that this key may manage, oldest first, without secrets; includes revoked keys.

    Without `limit` and `cursor` the answer has all keys, for clients that do not page.
    """
    with services.registry.database.read() as catalogue:
        if limit is None and cursor is None:
            return KeyList(data=[_key(row) for row in catalogue.keys.list() if principal.manages(row.namespaces)])
        page = catalogue.keys.page(principal.manages, limit=page_size(limit, services), cursor=cursor)
    return KeyList(data=[_key(row) for row in page.rows], next_cursor=page.next_cursor)


def managed_key(services: Services, principal: Principal, id: str) -> Key:
    """Return a key that this one may manage; raises NotFound."""
    with services.registry.database.read() as catalogue:
        return _key(managed_row(catalogue, id, principal))


@router.delete("/{id}")
def revoke_key(id: str, services: AppServices, principal: Admin) -> Key:
    """Revoke a key, from its next request on; a revoked key does not change. The last admin key cannot be revoked
    (409).

    Cancels its queued and running jobs, except jobs that another key requested too, and embeddings and fits for
    adapters that it pushed. Running answers, such as streams, continue to their end.
    """
    cancelled: list[JobRow] = []
    with services.registry.database.write() as catalogue:
        row = managed_row(catalogue, id, principal)
        if row.revoked_at is None:
            was_lasting_admin = row.is_lasting_admin
            row = catalogue.keys.revoke(id)
            if was_lasting_admin:
                _check_admin_left(catalogue, id)
            cancelled = withdraw(catalogue, id)
            detail: dict[str, Any] = {"name": row.name, "jobs_cancelled": len(cancelled)}
            principal.caller.audit(catalogue, "key.revoke", id, **detail)
    after_withdrawal(services, cancelled)
    return _key(row)


@router.patch("/{id}")
def change_key(id: str, body: KeyPatch, services: AppServices, principal: Admin) -> Key:
    """Change the name, scopes, namespaces or expiry of a key, from its next request on.

    Its queued jobs continue. The last admin key must remain one (409).
    """
    changes = body.changes()
    if "namespaces" in changes:
        _check_namespaces(changes["namespaces"], principal)
        changes["namespaces"] = None if changes["namespaces"] is None else list(dict.fromkeys(changes["namespaces"]))
    if "expires_at" in changes:
        _check_expiry(changes["expires_at"], principal)
    if "scopes" in changes:
        changes["scopes"] = sorted(set(changes["scopes"]))
    with services.registry.database.write() as catalogue:
        old_row = managed_row(catalogue, id, principal)
        _check_is_changeable(old_row)
        _check_expiry_order(old_row, principal)
        row = catalogue.keys.change(id, **changes)
        if old_row.is_lasting_admin:
            _check_admin_left(catalogue, id)
        old, new = (_key(state).model_dump(mode="json", include=set(changes)) for state in (old_row, row))
        principal.caller.audit(catalogue, "key.change", id, **new, before=old)
    return _key(row)


@router.post("/{id}/rotate")
def rotate_key(id: str, services: AppServices, principal: Anybody, body: Rotation = NO_GRACE) -> CreatedKey:
    """Replace the secret of a key; only this answer contains the new one. Admins may do so, and any key for its own
    secret.

    Previous secrets expire immediately or after `grace_seconds`.
    """
    if principal.key_id != id and not principal.has("admin"):
        raise Forbidden("This key lacks the scope 'admin': it can only replace its own secret.")
    secret = new_secret()
    with _turn_to_rotate(services.rotating_keys):
        with services.registry.database.write() as catalogue:
            old_row = catalogue.keys.get(id) if principal.key_id == id else managed_row(catalogue, id, principal)
            _check_is_changeable(old_row)
            _check_expiry_order(old_row, principal)
            old_secret = catalogue.keys.secret_of(id)
            ends_at = present() + timedelta(seconds=body.grace_seconds)
            row = catalogue.keys.rotate(id, secret_sha256(secret), prefix=secret[:VISIBLE_CHARACTERS], ends_at=ends_at)
            catalogue.sessions.remove_of_key(id)
            principal.caller.audit(catalogue, "key.rotate", id, name=row.name, grace_seconds=body.grace_seconds)
        replace_admin_secret(services.settings.admin_key_path, old_secret, secret)
    return CreatedKey(**_key(row).model_dump(), secret=secret)


@contextmanager
def _turn_to_rotate(lock: threading.Lock) -> Iterator[None]:
    """Hold the lock; raises Busy if others hold it for as long as a write waits for the database."""
    if not lock.acquire(timeout=BUSY_SECONDS):
        raise Busy("Other keys are being rotated: try again.", retry_after=1)
    try:
        yield
    finally:
        lock.release()


def _check_is_changeable(row: KeyRow) -> None:
    """Raise Conflict for a key that has ended, or of an identity, whose rights are in its issuer's tokens."""
    if row.issuer is not None:
        raise Conflict(
            f"{row.id} is an identity of {row.issuer}: change its rights there or in the server's mapping. "
            "Here it can only be revoked, for good.",
            param="id",
        )
    if row.revoked_at is not None:
        raise Conflict(f"Key {row.id} was revoked: make another.", param="id")
    if row.is_expired(present()):
        raise Conflict(f"Key {row.id} has expired: make another.", param="id")


def _check_expiry_order(row: KeyRow, principal: Principal) -> None:
    """Raise Forbidden if a key that expires would change one that expires later or never."""
    end = principal.expires_at
    if end is not None and (row.expires_at is None or row.expires_at > end):
        raise Forbidden(
            f"This key expires on {end.isoformat()} and can only change keys that expire by then.", param="id"
        )


def _check_admin_left(catalogue: Catalogue, id: str) -> None:
    """Raise Conflict, which rolls the transaction back, if the change of a key leaves no lasting admin."""
    if not catalogue.keys.admins():
        raise Conflict(
            f"Key {id} is the last one with scope 'admin' and all namespaces that does not expire: make another first.",
            param="id",
        )


def _check_namespaces(namespaces: list[str] | None, principal: Principal) -> None:
    """Raise InvalidParameter or Forbidden unless this key may make one that sees `namespaces` (None: all)."""
    if namespaces == []:
        raise InvalidParameter("A key without any namespace sees nothing; null means all.", param="namespaces")
    reserved = sorted(RESERVED_NAMESPACES.intersection(namespaces or ()))
    if reserved:
        raise InvalidParameter(f"Namespace '{reserved[0]}' is reserved.", param="namespaces")
    if not principal.manages(None if namespaces is None else tuple(namespaces)):
        raise Forbidden("This key can only make keys for namespaces that it sees itself.", param="namespaces")


def _check_expiry(expires_at: datetime | None, principal: Principal) -> None:
    """Raise InvalidParameter or Forbidden unless this key may make one that expires then (None: never)."""
    if expires_at is not None and not present() < expires_at <= present() + MAX_LIFETIME:
        raise InvalidParameter(
            f"expires_at must be in the future, at most {MAX_LIFETIME.days} days ahead; leave it out for a key "
            "that does not expire.",
            param="expires_at",
        )
    if principal.expires_at is not None and (expires_at is None or expires_at > principal.expires_at):
        raise Forbidden(
            f"This key or session ends on {principal.expires_at.isoformat()}, and a new key must not outlive "
            "it: give 'expires_at'.",
            param="expires_at",
        )


def _key(row: KeyRow) -> Key:
    return Key.model_validate(asdict(row) | {"scopes": sorted(row.scopes)}, strict=False)
