"""The page of keys: those that an admin may manage, another one made, a secret replaced, a key revoked.

A secret is on the page that answers the form which made it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import get_args

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from registry.errors import Conflict, InvalidParameter, SoupError
from registry.names import KeyScope
from service.access.key_watch import present
from service.access.keys import Principal
from service.http import problems
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import begin_of, given
from service.http.pages.forms import FEW, Form, takes_form
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.requests.body_limits import BodyLimit
from service.http.requests.paging import Cursor, Limit, page_size
from service.http.routes.keys import create_key, list_keys, managed_key, revoke_key, rotate_key
from service.http.schemas.keys import CreatedKey, KeyList, NewKey, Rotation
from service.http.security.auth import Admin
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
SCOPES: dict[KeyScope, str] = {
    "read": "see models, jobs and selectors",
    "write": "push, cook, train, and change what is there",
    "infer": "ask models",
    "admin": "all of that, and manage keys and namespaces",
}
NEW = BodyLimit(lambda _: 256 * 1024)
"""The form of a new key, which may name a thousand namespaces."""
GRACE = timedelta(days=1)
"""For so long a secret that was replaced goes on, where that is asked for."""


@pages.get(addresses.KEYS + addresses.TWIN)
def keys(services: AppServices, principal: Admin, limit: Limit = None, cursor: Cursor = None) -> KeyList:
    """What the page shows."""
    return list_keys(services, principal, page_size(limit, services), cursor)


@pages.get(addresses.KEYS)
def keys_page(
    request: Request, services: AppServices, principal: Admin, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """The page."""
    return _page(request, services, principal, limit=limit, cursor=cursor)


@pages.post(addresses.KEYS)
@takes_form(NEW)
def make(request: Request, form: Form, services: AppServices, principal: Admin) -> Response:
    """Make a key, and show its secret once; the form again where that cannot be, with what is wrong."""
    try:
        made = create_key(request, _new(form), services, principal)
    except SoupError as error:
        return _page(request, services, principal, given_before=form, error=error)
    return _page(request, services, principal, made=made)


@pages.post(addresses.KEY_ROTATE)
@takes_form(FEW)
def rotate(id: str, request: Request, form: Form, services: AppServices, principal: Admin) -> Response:
    """Give a key another secret, and show it once."""
    grace = GRACE if form.get("grace") else timedelta()
    made = rotate_key(request, id, services, principal, Rotation(grace_seconds=int(grace.total_seconds())))
    return _page(request, services, principal, made=made)


@pages.post(addresses.KEY_REVOKE)
@takes_form(FEW)
def revoke(id: str, request: Request, form: Form, services: AppServices, principal: Admin) -> Response:
    """Revoke a key, whose name has to be said as well."""
    try:
        if given(form.get("name")) != given(managed_key(services, principal, id).name):
            raise InvalidParameter("To revoke a key, write its name into the field: it was not that.", param="name")
        revoke_key(request, id, services, principal)
    except (Conflict, InvalidParameter) as error:
        return _page(request, services, principal, error=error)
    return gone_to(addresses.KEYS)


def _page(
    request: Request,
    services: Services,
    principal: Principal,
    *,
    made: CreatedKey | None = None,
    given_before: Mapping[str, str] | None = None,
    error: SoupError | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Response:
    """The page, with a key that was just made, or with what is wrong with the form as it was given.

    A secret that was just made is shown also where the list cannot be read: there is no other place to find it.
    """
    listed: KeyList | None = None
    try:
        listed = keys(services, principal, limit, cursor)
    except SoupError:
        if made is None:
            raise
    return shown(
        request,
        "keys.html",
        error=error,
        found=listed,
        made=made,
        given=given_before or {},
        scopes=SCOPES,
        now=present(),
        own=principal.key_id,
        limit=limit,
        cursor=cursor,
    )


def _new(form: Mapping[str, str]) -> NewKey:
    """The key that a form asks for; raises InvalidParameter."""
    named = (given(form.get("namespaces")) or "").replace(",", " ").split()
    if not named and "all" not in form:
        raise InvalidParameter(
            "Name the namespaces that the key may see, or say that it may see all.", param="namespaces"
        )
    if named and "all" in form:
        raise InvalidParameter("Name namespaces or take all of them, not both.", param="namespaces")
    end = begin_of(form.get("expires"), "expires")
    try:
        return NewKey.model_validate(
            {
                "name": given(form.get("name")) or "",
                "namespaces": named or None,
                "scopes": [scope for scope in get_args(KeyScope) if f"scope-{scope}" in form],
                "expires_at": None if end is None else end.isoformat(),
            }
        )
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
