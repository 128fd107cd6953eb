"""`/v1/namespaces`: settings of a namespace, which its admins change, and the limits of namespaces and of keys.

Namespaces are not created: one exists once it has an adapter. Only keys that see all namespaces change its limits.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from registry.catalogue import Catalogue
from registry.catalogue.rows import NamespaceRow
from registry.errors import Forbidden, InvalidName
from registry.names import RESERVED_NAMESPACES, check_alias, check_part
from registry.quotas import effective_limits
from registry.spec import LimitKind
from service.access.keys import Principal, managed_row
from service.http.app_services import AppServices
from service.http.models.metering import used_rates
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import IfMatch
from service.http.schemas.namespaces import InUse, Limits, LimitsPatch, Namespace, NamespacePatch
from service.http.security.auth import Admin, Reader

router = APIRouter(prefix="/v1", route_class=CheckedRoute)


@router.get("/namespaces/{ns}", tags=["namespaces"])
def get_namespace(ns: str, services: AppServices, principal: Reader) -> Namespace:
    """The settings of a namespace that this key sees, with defaults for those that are not set."""
    _check_namespace(ns, principal)
    with services.registry.database.read() as catalogue:
        return _body(catalogue.namespaces.get(ns))


@router.patch("/namespaces/{ns}", tags=["namespaces"])
def change_namespace(
    ns: str, body: NamespacePatch, services: AppServices, principal: Admin, if_match: IfMatch
) -> Namespace:
    """Change the settings of a namespace; with If-Match only if they have not changed since the caller read them."""
    _check_namespace(ns, principal)
    changes = body.changes()
    changes |= {name: sorted(set(map(check_alias, changes[name]))) for name in changes.keys() & {"protected_aliases"}}
    with services.registry.database.write() as catalogue:
        old_settings = asdict(catalogue.namespaces.get(ns))
        row = catalogue.namespaces.set(ns, changes, if_match=if_match)
        old = {name: old_settings[name] for name in changes}
        principal.caller.audit(catalogue, "namespace.change", f"{ns}/", **changes, before=old)
    return _body(row)


def _check_namespace(ns: str, principal: Principal) -> None:
    principal.check_visible(ns)
    check_part(ns, "namespace")
    if ns in RESERVED_NAMESPACES:
        raise InvalidName(f"Namespace {ns!r} is reserved; nothing is in it.", param="namespace")


def _body(row: NamespaceRow) -> Namespace:
    return Namespace.model_validate(asdict(row) | {"protected_aliases": list(row.protected_aliases)})


@router.get("/keys/{id}/limits", tags=["keys"])
def get_key_limits(id: str, services: AppServices, principal: Admin) -> Limits:
    """The limits of a key, and its use of them."""
    with services.registry.database.read() as catalogue:
        managed_row(catalogue, id, principal)
        limits = _limits(services, catalogue, "key", id)
    return _with_rates(services, limits)


@router.patch("/keys/{id}/limits", tags=["keys"])
def change_key_limits(id: str, body: LimitsPatch, services: AppServices, principal: Admin) -> Limits:
    """Change the limits of a key that the request names; null sets one to the server's default."""
    with services.registry.database.write() as catalogue:
        managed_row(catalogue, id, principal)
        _change(catalogue, "key", id, body, principal)
        limits = _limits(services, catalogue, "key", id)
    return _with_rates(services, limits)


@router.get("/namespaces/{ns}/limits", tags=["keys"])
def get_namespace_limits(ns: str, services: AppServices, principal: Reader) -> Limits:
    """The limits of a namespace that this key sees, and its use of them."""
    _check_namespace(ns, principal)
    with services.registry.database.read() as catalogue:
        limits = _limits(services, catalogue, "namespace", ns)
    return _with_rates(services, limits)


@router.patch("/namespaces/{ns}/limits", tags=["keys"])
def change_namespace_limits(ns: str, body: LimitsPatch, services: AppServices, principal: Admin) -> Limits:
    """Change the limits of a namespace that the request names; null sets one to the server's default.

    Requires an admin key with all namespaces; a namespace's own admin cannot change its limits.
    """
    _check_namespace(ns, principal)
    if principal.namespaces is not None:
        raise Forbidden("The limits of a namespace are changed by keys that see all namespaces.", param="namespace")
    with services.registry.database.write() as catalogue:
        _change(catalogue, "namespace", ns, body, principal)
        limits = _limits(services, catalogue, "namespace", ns)
    return _with_rates(services, limits)


def _change(catalogue: Catalogue, kind: LimitKind, subject: str, body: LimitsPatch, principal: Principal) -> None:
    old = catalogue.limits.get(kind, subject)
    changed = old.model_copy(update=body.changes())
    catalogue.limits.set(kind, subject, changed)
    audit_subject = f"{subject}/" if kind == "namespace" else subject
    principal.caller.audit(
        catalogue, f"{kind}.limits", audit_subject, limits=changed.model_dump(), before=old.model_dump()
    )


def _limits(services: AppServices, catalogue: Catalogue, kind: LimitKind, subject: str) -> Limits:
    limits = catalogue.limits
    return Limits(
        kind=kind,
        id=subject,
        limits=limits.get(kind, subject),
        in_force=effective_limits(catalogue, services.registry.quotas, [(kind, subject)])[kind, subject],
        in_use=InUse(
            stored_bytes=limits.stored_bytes(kind, subject),
            adapters=limits.adapters(kind, subject),
            jobs=limits.jobs(kind, subject),
        ),
    )


def _with_rates(services: AppServices, limits: Limits) -> Limits:
    """Add the use of the limits per minute, which the rates read on their own."""
    used = used_rates(services, (limits.kind, limits.id), limits.in_force)
    return limits.model_copy(update={"in_use": limits.in_use.model_copy(update=used)})
