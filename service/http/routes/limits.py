"""Limits of keys and namespaces: read and changed. What a namespace may use, only keys that see all of them decide."""

from __future__ import annotations

from fastapi import APIRouter, Request

from registry.catalogue import Catalogue
from registry.errors import Forbidden, InvalidName, NotFound
from registry.names import RESERVED_NAMESPACES, check_part
from registry.quotas import in_force
from registry.spec import LimitKind, UseLimits
from service.http.app_parts import AppParts
from service.http.auth import Admin, Reader
from service.http.bodies import CheckedRoute
from service.http.schemas.limits import InUse, Limits
from service.keys import Principal

router = APIRouter(prefix="/v1", tags=["keys"], route_class=CheckedRoute)


@router.get("/keys/{id}/limits")
def get_key_limits(id: str, parts: AppParts, who: Admin) -> Limits:
    """The limits of a key, and what it uses of its quotas."""
    with parts.registry.database.read() as catalogue:
        _check_key(catalogue, id, who)
        return _body(parts, catalogue, "key", id)


@router.patch("/keys/{id}/limits")
def change_key_limits(request: Request, id: str, body: UseLimits, parts: AppParts, who: Admin) -> Limits:
    """Change those limits of a key that are named; null leaves one to the server's default."""
    with parts.registry.database.write() as catalogue:
        _check_key(catalogue, id, who)
        _change(catalogue, "key", id, body, who, request.state.request_id)
        return _body(parts, catalogue, "key", id)


@router.get("/namespaces/{ns}/limits")
def get_namespace_limits(ns: str, parts: AppParts, who: Reader) -> Limits:
    """The limits of a namespace that this key sees, and what it uses of its quotas."""
    _check_namespace(ns, who)
    with parts.registry.database.read() as catalogue:
        return _body(parts, catalogue, "namespace", ns)


@router.patch("/namespaces/{ns}/limits")
def change_namespace_limits(request: Request, ns: str, body: UseLimits, parts: AppParts, who: Admin) -> Limits:
    """Change those limits of a namespace that are named; null leaves one to the server's default.

    Only for admins of all namespaces: a namespace's own admin is held to them.
    """
    _check_namespace(ns, who)
    if who.namespaces is not None:
        raise Forbidden("The limits of a namespace are changed by keys that see all namespaces.", param="namespace")
    with parts.registry.database.write() as catalogue:
        _change(catalogue, "namespace", ns, body, who, request.state.request_id)
        return _body(parts, catalogue, "namespace", ns)


def _change(
    catalogue: Catalogue, kind: LimitKind, subject: str, body: UseLimits, who: Principal, request_id: str
) -> None:
    before = catalogue.limits.get(kind, subject)
    changed = before.model_copy(update=body.model_dump(exclude_unset=True))
    catalogue.limits.set(kind, subject, changed)
    named = f"{subject}/" if kind == "namespace" else subject
    who.caller(request_id).audit(
        catalogue, f"{kind}.limits", named, limits=changed.model_dump(), before=before.model_dump()
    )


def _check_key(catalogue: Catalogue, id: str, who: Principal) -> None:
    row = catalogue.keys.find(id)
    if row is None or not who.manages(row.namespaces):
        raise NotFound("There is no such key, or this key may not manage it.", param="id")


def _check_namespace(ns: str, who: Principal) -> None:
    who.check_visible(ns)
    check_part(ns, "namespace")
    if ns in RESERVED_NAMESPACES:
        raise InvalidName(f"Namespace {ns!r} is reserved; nothing is in it.", param="namespace")


def _body(parts: AppParts, catalogue: Catalogue, kind: LimitKind, subject: str) -> Limits:
    used = catalogue.limits
    return Limits(
        kind=kind,
        id=subject,
        limits=used.get(kind, subject),
        in_force=in_force(catalogue, parts.registry.quotas, kind, subject),
        in_use=InUse(
            stored_bytes=used.stored_bytes(kind, subject),
            adapters=used.adapters(kind, subject),
            jobs=used.jobs(kind, subject),
        ),
    )
