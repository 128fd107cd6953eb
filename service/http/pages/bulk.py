"""Many models changed at once: those that were ticked, or all that a search found, are shown before anything happens.

Each is changed as the API's own routes change one, by itself: what one is refused for keeps no other from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from registry.catalogue.rows import AdapterRow
from registry.errors import InvalidName, InvalidParameter, NotFound, PreconditionFailed, Retired, SoupError, TooLarge
from registry.names import NameRef, check_part, parse_ref
from registry.spec import Card
from service.access.keys import Principal
from service.http import problems
from service.http.app_parts import AppServices
from service.http.models.named_models import adapter_named
from service.http.pages import addresses
from service.http.pages.forms import Form, takes_form
from service.http.pages.models import Asked, Filters
from service.http.pages.page import PageRoute, shown
from service.http.requests.body_limits import BodyLimit
from service.http.routes.adapters import change_adapter, list_adapters, retire_adapter
from service.http.schemas.adapters import Adapter, AdapterPatch, ListedAdapter, listed_body
from service.http.schemas.wire import Wire
from service.http.security.auth import Writer
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MOST = 500
"""Versions that are changed at once."""
LONGEST = 64 + 64 + 12
"""Characters of a version's name."""
REFS = BodyLimit(lambda _: 3 * LONGEST * MOST + 16 * 1024)
"""A form that names them all."""
TRIES = 3
"""Times that a card which somebody else changes meanwhile is read again."""
Chosen = Annotated[list[str] | None, Query(max_length=MOST)]
Action = Literal["tags", "owner", "no owner", "retire"]
OF_OWNERS = ("owner", "no owner")


class Selection(Wire):
    """Versions that are to be changed."""

    object: Literal["selection"] = "selection"
    filters: Filters
    """That found them; without any they were named."""
    data: list[ListedAdapter]


class Outcome(Wire):
    """What became of one version."""

    ref: str
    state: Literal["changed", "owner changed", "as it was", "refused"]
    problem: str | None = None


@pages.get(addresses.BULK + addresses.TWIN)
def selection(services: AppServices, principal: Writer, asked: Asked, ref: Chosen = None) -> Selection:
    """What the page shows; raises InvalidParameter where nothing is asked for, TooLarge where too much is found."""
    if ref and asked.given:
        raise InvalidParameter("Tick models or search for them, not both.", param="ref")
    if ref:
        rows = [adapter_named(services, principal, *_named(one)) for one in dict.fromkeys(ref)]
        return Selection(filters=asked, data=[listed_body(row) for row in rows])
    if not asked.given:
        raise InvalidParameter("Tick the models that are to be changed, or search for them first.", param="ref")
    return Selection(filters=asked, data=_found(services, principal, asked))


@pages.get(addresses.BULK)
def bulk_page(request: Request, services: AppServices, principal: Writer, asked: Asked, ref: Chosen = None) -> Response:
    """The page: what would be changed, and how it can be."""
    return _page(request, selection(services, principal, asked, ref), {})


@pages.post(addresses.BULK)
@takes_form(REFS)
def change(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Change those that the page showed, one by one, and say what became of each."""
    refs = [one for one in dict.fromkeys(form.get("refs", "").split()) if one]
    try:
        act = _action(form, request, services, principal, count=len(refs))
    except SoupError as error:
        return _page(
            request, Selection(filters=Filters(), data=_still(services, principal, refs[:MOST])), form, error=error
        )
    outcomes, errors = [], []
    done: Literal["changed", "owner changed"] = "owner changed" if form.get("do") in OF_OWNERS else "changed"
    for one in refs:
        try:
            outcomes.append(Outcome(ref=one, state=done if act(*_named(one)) else "as it was"))
        except SoupError as error:
            outcomes.append(Outcome(ref=one, state="refused", problem=problems.body_of(error).error.message))
            errors.append(error)
    return shown(
        request,
        "changed.html",
        outcomes=outcomes,
        error=errors[0] if len(errors) == len(refs) else None,
        done=done,
        counts={state: sum(one.state == state for one in outcomes) for state in (done, "as it was", "refused")},
    )


def _page(request: Request, found: Selection, given: Mapping[str, str], *, error: SoupError | None = None) -> Response:
    tags = sorted({tag for one in found.data for tag in one.card.tags})
    owners = sorted({one.owner for one in found.data if one.owner is not None})
    return shown(request, "bulk.html", error=error, found=found, given=given, tags=tags, owners=owners)


def _found(services: Services, principal: Principal, asked: Filters) -> list[ListedAdapter]:
    """All live versions that a search finds; raises TooLarge beyond MOST."""
    data: list[ListedAdapter] = []
    cursor: str | None = None
    while True:
        page = list_adapters(
            services, principal, **asked.model_dump(), limit=services.settings.max_page_size, cursor=cursor
        )
        data += page.data
        if len(data) > MOST:
            raise TooLarge(f"This finds more than {MOST} versions: narrow it down, and change them in several turns.")
        if page.next_cursor is None:
            return data
        cursor = page.next_cursor


def _still(services: Services, principal: Principal, refs: Sequence[str]) -> list[ListedAdapter]:
    """Those of some versions that are there: what a form named can be gone by the time it is sent."""
    data = []
    for one in refs:
        with suppress(InvalidName, NotFound, Retired):
            data.append(listed_body(adapter_named(services, principal, *_named(one))))
    return data


def _named(ref: str) -> tuple[str, str]:
    """Namespace and name of a version, `acme/law@2`; raises InvalidName for what names no single one."""
    parsed = parse_ref(ref)
    if not isinstance(parsed, NameRef) or parsed.version is None:
        raise InvalidName("A version is named as namespace/name@version.", param="ref")
    return parsed.namespace, f"{parsed.name}@{parsed.version}"


# --- what is done to each -------------------------------------------------------------------------------


def _action(
    form: Mapping[str, str], request: Request, services: Services, principal: Principal, *, count: int
) -> Callable[[str, str], bool]:
    """What is done to a version by its namespace and name, which tells whether it is another now.

    Raises InvalidParameter or InvalidName for what cannot be done to any of them.
    """
    if not 0 < count <= MOST:
        raise InvalidParameter(f"Between one and {MOST} versions are changed at once, and these are {count}.")
    if form.get("do") == "retire":
        if form.get("count", "").strip() != str(count):
            raise InvalidParameter(f"To retire {count}, write that number into the field.", param="count")
        return lambda ns, name: bool(retire_adapter(request, ns, name, services, principal).data)
    if form.get("do") in OF_OWNERS:
        owner = form.get("owner", "").strip() if form["do"] == "owner" else None
        if owner == "":
            raise InvalidParameter(
                "Write who is to answer for them; a button of its own takes owners away.", param="owner"
            )
        owned, given = _owned(owner), set[tuple[str, str]]()

        def own(ns: str, name: str) -> bool:
            label = (ns, name.partition("@")[0])
            if _changed(request, services, principal, ns, name, owned):
                given.add(label)
            return label in given  # a version before it in the form may have brought its name the owner

        return own
    add, remove = (form.get(name, "").replace(",", " ").split() for name in ("add", "remove"))
    if not add and not remove:
        raise InvalidParameter("Name a tag to add or to take away.", param="add")
    for tag in (*add, *remove):
        check_part(tag, "tag")  # said once, and not of each version
    return lambda ns, name: _changed(request, services, principal, ns, name, lambda row: _tagged(row.card, add, remove))


def _patch(**said: object) -> AdapterPatch:
    """A change; raises InvalidParameter for what no adapter takes."""
    try:
        return AdapterPatch.model_validate(said)
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


def _tagged(card: Card, add: Sequence[str], remove: Sequence[str]) -> AdapterPatch | None:
    """The change to other tags, None where it has them; raises InvalidParameter for more than a card takes."""
    tags = tuple(tag for tag in dict.fromkeys([*card.tags, *add]) if tag not in remove)
    return None if tags == card.tags else _patch(card={**card.model_dump(mode="json"), "tags": list(tags)})


def _owned(owner: str | None) -> Callable[[AdapterRow], AdapterPatch | None]:
    """The change to this owner, or to none; raises InvalidParameter for what no owner is called."""
    patch = _patch(owner=owner)
    return lambda row: None if row.owner == patch.owner else patch


def _changed(
    request: Request,
    services: Services,
    principal: Principal,
    ns: str,
    name: str,
    wanted: Callable[[AdapterRow], AdapterPatch | None],
) -> bool:
    """Change a version as is `wanted` of it, again where somebody else was quicker; False where it is so already."""
    for left in reversed(range(TRIES)):
        row = adapter_named(services, principal, ns, name)
        patch = wanted(row)
        if patch is None:
            principal.check_write(ns)
            return False
        try:
            found: Adapter = change_adapter(request, ns, name, patch, services, principal, if_match=row.etag)
        except PreconditionFailed:
            if not left:
                raise
        else:
            return found.etag != row.etag
    raise AssertionError("tried at least once")
