"""The page of keys: the keys that an admin may manage, with forms to create, rotate and revoke one.

A secret is shown once, on the page that answers the form which created it.
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
from service.http.app_services import AppServices
from service.http.pages.forms import SMALL, Form, takes_form, text_or_none
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.requests.body_limits import BodyLimit
from service.http.requests.parameters import Cursor, Limit, page_size
from service.http.routes.keys import create_key, list_keys, managed_key, revoke_key, rotate_key
from service.http.schemas.keys import CreatedKey, KeyList, NewKey, Rotation
from service.http.security.auth import Admin
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
SCOPE_HINTS: dict[KeyScope, str] = {
    "read": "see models, jobs and selectors",
    "write": "push, cook, train, and change what is there",
    "infer": "ask models",
    "admin": "all of that, and manage keys and namespaces",
}
NEW_KEY = BodyLimit(lambda _: 256 * 1024)
"""Limit of the form of a new key, which may name a thousand namespaces."""
GRACE = timedelta(days=1)
"""How long a rotated secret stays valid if the form requests it."""


@pages.get("/keys.json")
def keys(services: AppServices, principal: Admin, limit: Limit = None, cursor: Cursor = None) -> KeyList:
    """The content of the page."""
    return list_keys(services, principal, page_size(limit, services), cursor)


@pages.get("/keys")
def keys_page(
    request: Request, services: AppServices, principal: Admin, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """The page."""
    return _page(request, keys(services, principal, limit, cursor), limit=limit, cursor=cursor)


@pages.post("/keys")
@takes_form(NEW_KEY)
def create(request: Request, form: Form, services: AppServices, principal: Admin) -> Response:
    """Create a key and show its secret; show the form again with the error if that fails."""
    try:
        created = create_key(_parse_key(form), services, principal)
    except SoupError as error:
        return _page(request, keys(services, principal), form=form, error=error)
    return _secret_page(request, services, principal, created)


@pages.post("/keys/{id}/rotate")
@takes_form(SMALL)
def rotate(id: str, request: Request, form: Form, services: AppServices, principal: Admin) -> Response:
    """Replace the secret of a key and show the new one."""
    grace = GRACE if form.get("grace") else timedelta()
    created = rotate_key(id, services, principal, Rotation(grace_seconds=int(grace.total_seconds())))
    return _secret_page(request, services, principal, created)


@pages.post("/keys/{id}/revoke")
@takes_form(SMALL)
def revoke(id: str, request: Request, form: Form, services: AppServices, principal: Admin) -> Response:
    """Revoke a key whose name was typed to confirm."""
    try:
        if text_or_none(form.get("name")) != text_or_none(managed_key(services, principal, id).name):
            raise InvalidParameter(
                "The name in the field is not that of the key: type it to revoke the key.", param="name"
            )
        revoke_key(id, services, principal)
    except (Conflict, InvalidParameter) as error:
        return _page(request, keys(services, principal), error=error)
    return redirect_to("/keys")


def _secret_page(request: Request, services: Services, principal: Principal, created: CreatedKey) -> Response:
    """The page with a new secret, also if the list of keys cannot be read: the secret is shown nowhere else."""
    try:
        key_list = keys(services, principal)
    except SoupError:
        key_list = None
    return _page(request, key_list, created=created)


def _page(
    request: Request,
    key_list: KeyList | None,
    *,
    created: CreatedKey | None = None,
    form: Mapping[str, str] | None = None,
    error: SoupError | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Response:
    """The page with a new secret, or with the fields of a form and its error."""
    return render_page(
        request,
        "keys.html",
        error=error,
        key_list=key_list,
        created=created,
        form=form or {},
        scopes=SCOPE_HINTS,
        now=present(),
        limit=limit,
        cursor=cursor,
    )


def _parse_key(form: Mapping[str, str]) -> NewKey:
    """The key that a form describes; raises InvalidParameter."""
    namespaces = (text_or_none(form.get("namespaces")) or "").replace(",", " ").split()
    if not namespaces and "all" not in form:
        raise InvalidParameter("Name the namespaces of the key, or choose all namespaces.", param="namespaces")
    if namespaces and "all" in form:
        raise InvalidParameter("Name namespaces or take all of them, not both.", param="namespaces")
    expires = text_or_none(form.get("expires"))
    try:
        return NewKey.model_validate(
            {
                "name": text_or_none(form.get("name")) or "",
                "namespaces": namespaces or None,
                "scopes": [scope for scope in get_args(KeyScope) if f"scope-{scope}" in form],
                "expires_at": expires and f"{expires}T00:00:00Z",
            }
        )
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
