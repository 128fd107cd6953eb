"""`/v1/namespaces`: the settings of a namespace, which its admins change. Nobody makes one: it is where a name is."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request

from registry.catalogue.rows import NamespaceRow
from registry.errors import InvalidName
from registry.names import RESERVED_NAMESPACES, check_alias, check_part
from service.http.app_parts import AppParts
from service.http.auth import Admin, Reader
from service.http.bodies import CheckedRoute
from service.http.if_match import IfMatch, etag_of
from service.http.schemas.namespaces import Namespace, NamespacePatch
from service.keys import Principal

router = APIRouter(prefix="/v1/namespaces", tags=["namespaces"], route_class=CheckedRoute)


@router.get("/{ns}")
def get_namespace(ns: str, parts: AppParts, who: Reader) -> Namespace:
    """The settings of a namespace that this key sees; the defaults where nothing was set."""
    _check(ns, who)
    with parts.registry.database.read() as catalogue:
        return _body(catalogue.namespaces.get(ns))


@router.patch("/{ns}")
def change_namespace(
    request: Request, ns: str, body: NamespacePatch, parts: AppParts, who: Admin, if_match: IfMatch = None
) -> Namespace:
    """Change the settings of a namespace; with If-Match only if they are still what the caller saw."""
    _check(ns, who)
    changes = body.changes()
    changes |= {name: sorted(set(map(check_alias, changes[name]))) for name in changes.keys() & {"protected_aliases"}}
    with parts.registry.database.write() as catalogue:
        before = asdict(catalogue.namespaces.get(ns))
        row = catalogue.namespaces.set(ns, changes, if_match=etag_of(if_match))
        was = {name: before[name] for name in changes}
        who.caller(request.state.request_id).audit(catalogue, "namespace.change", f"{ns}/", **changes, before=was)
    return _body(row)


def _check(ns: str, who: Principal) -> None:
    who.check_visible(ns)
    check_part(ns, "namespace")
    if ns in RESERVED_NAMESPACES:
        raise InvalidName(f"Namespace {ns!r} is reserved; nothing is in it.", param="namespace")


def _body(row: NamespaceRow) -> Namespace:
    return Namespace.model_validate(asdict(row) | {"protected_aliases": list(row.protected_aliases)})
