"""Changes to many models at once: the selected versions are listed first, then changed one by one.

Each version is changed by the API's own routes, so that a refusal of one does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from registry.catalogue.rows import AdapterRow
from registry.errors import InvalidName, InvalidParameter, NotFound, Retired, SoupError, TooLarge
from registry.names import NameRef, check_part, parse_ref
from service.access.keys import Principal
from service.http import problems
from service.http.app_services import AppServices
from service.http.models.named_models import adapter_named
from service.http.pages.forms import Form, takes_form
from service.http.pages.models import Filters, QueryFilters
from service.http.pages.page import PageRoute, render_page
from service.http.requests.body_limits import BodyLimit
from service.http.routes.adapters import AdapterListQuery, change_adapter, list_adapters, retire_adapter
from service.http.schemas.adapters import AdapterPatch, ListedAdapter, listed_body
from service.http.schemas.wire import Wire
from service.http.security.auth import Writer
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_VERSIONS = 500
"""Versions that are changed at once."""
MAX_REF_LENGTH = 64 + 64 + 12
"""Characters of a version's ref."""
REFS = BodyLimit(lambda _: 3 * MAX_REF_LENGTH * MAX_VERSIONS + 16 * 1024)
"""Limit of the form that lists the refs of all versions."""
Refs = Annotated[list[str] | None, Query(max_length=MAX_VERSIONS)]
OWNER_ACTIONS = ("owner", "no owner")


class Selection(Wire):
    """The versions to be changed."""

    object: Literal["selection"] = "selection"
    filters: Filters
    """The search that found them; empty if they were selected one by one."""
    data: list[ListedAdapter]


class Outcome(Wire):
    """The result for one version."""

    ref: str
    state: Literal["changed", "owner changed", "as it was", "refused"]
    problem: str | None = None


@pages.get("/models/edit.json")
def selection(services: AppServices, principal: Writer, filters: QueryFilters, ref: Refs = None) -> Selection:
    """The content of the page; raises InvalidParameter for no selection or two, TooLarge for too many versions."""
    if ref and filters.active:
        raise InvalidParameter("Either select models or search for them, not both.", param="ref")
    if ref:
        rows = [adapter_named(services, principal, *_split_ref(version)) for version in dict.fromkeys(ref)]
        return Selection(filters=filters, data=[listed_body(row) for row in rows])
    if not filters.active:
        raise InvalidParameter("Select the models to change, or search for them.", param="ref")
    return Selection(filters=filters, data=_search(services, principal, filters))


@pages.get("/models/edit")
def bulk_page(
    request: Request, services: AppServices, principal: Writer, filters: QueryFilters, ref: Refs = None
) -> Response:
    """The page: the selected versions and the forms to change them."""
    return _page(request, selection(services, principal, filters, ref), {})


@pages.post("/models/edit")
@takes_form(REFS)
def change_versions(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Change the selected versions one by one, and show the result for each."""
    refs = list(dict.fromkeys(form.get("refs", "").split()))
    try:
        change = _parse_change(form, count=len(refs))
    except SoupError as error:
        remaining = _existing(services, principal, refs[:MAX_VERSIONS])
        return _page(request, Selection(filters=Filters(), data=remaining), form, error=error)
    editor = Editor(services, principal)
    changed: Literal["changed", "owner changed"] = "owner changed" if form.get("do") in OWNER_ACTIONS else "changed"
    outcomes, errors = [], []
    for ref in refs:
        try:
            state = changed if change(editor, *_split_ref(ref)) else "as it was"
            outcomes.append(Outcome(ref=ref, state=state))
        except SoupError as error:
            outcomes.append(Outcome(ref=ref, state="refused", problem=problems.body_of(error).error.message))
            errors.append(error)
    states = [outcome.state for outcome in outcomes]
    return render_page(
        request,
        "changed.html",
        outcomes=outcomes,
        error=errors[0] if len(errors) == len(refs) else None,
        changed=changed,
        counts={state: states.count(state) for state in (changed, "as it was", "refused")},
    )


def _page(
    request: Request, selection: Selection, form: Mapping[str, str], *, error: SoupError | None = None
) -> Response:
    tags = sorted({tag for version in selection.data for tag in version.card.tags})
    owners = sorted({version.owner for version in selection.data if version.owner is not None})
    return render_page(
        request, "bulk.html", error=error, selection=selection, form=form, known_tags=tags, known_owners=owners
    )


def _search(services: Services, principal: Principal, filters: Filters) -> list[ListedAdapter]:
    """All live versions that match; raises TooLarge for more than MAX_VERSIONS."""
    versions: list[ListedAdapter] = []
    cursor: str | None = None
    while True:
        query = AdapterListQuery(**filters.model_dump(), limit=services.settings.max_page_size, cursor=cursor)
        page = list_adapters(services, principal, query)
        versions += page.data
        if len(versions) > MAX_VERSIONS:
            raise TooLarge(
                f"This finds more than {MAX_VERSIONS} versions: narrow it down, and change them in several turns."
            )
        if page.next_cursor is None:
            return versions
        cursor = page.next_cursor


def _existing(services: Services, principal: Principal, refs: Sequence[str]) -> list[ListedAdapter]:
    """The versions that exist: some may have been removed since the page was loaded."""
    versions = []
    for ref in refs:
        with suppress(InvalidName, NotFound, Retired):
            versions.append(listed_body(adapter_named(services, principal, *_split_ref(ref))))
    return versions


def _split_ref(ref: str) -> tuple[str, str]:
    """The namespace and the name with version of `acme/law@2`; raises InvalidName for other refs."""
    parsed = parse_ref(ref)
    if not isinstance(parsed, NameRef) or parsed.version is None:
        raise InvalidName("A version is named as namespace/name@version.", param="ref")
    return parsed.namespace, f"{parsed.name}@{parsed.version}"


# --- the changes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Editor:
    """Changes versions with the rights of the principal who sent a request."""

    services: Services
    principal: Principal

    def patch(self, ns: str, name: str, patch_for: Callable[[AdapterRow], AdapterPatch | None]) -> bool:
        """Apply `patch_for(row)` unless it is None; raises PreconditionFailed if others change the version meanwhile.

        Returns True if the version is different now.
        """
        row = adapter_named(self.services, self.principal, ns, name)
        patch = patch_for(row)
        if patch is None:
            return False
        body = change_adapter(ns, name, patch, self.services, self.principal, if_match=frozenset({row.etag}))
        return body.etag != row.etag


Change = Callable[[Editor, str, str], bool]
"""Changes a version by namespace and name; returns True if it is different now."""


def _retire(editor: Editor, ns: str, name: str) -> bool:
    """Retire one version; return True."""
    return bool(retire_adapter(ns, name, editor.services, editor.principal).data)


def _owner_change(patch: AdapterPatch) -> Change:
    """The change of the owner, which is changed for all versions of a name with the first of them."""
    changed_names = set[tuple[str, str]]()

    def change(editor: Editor, ns: str, name: str) -> bool:
        label = (ns, name.partition("@")[0])
        if editor.patch(ns, name, lambda row: None if row.owner == patch.owner else patch):
            changed_names.add(label)
        return label in changed_names

    return change


def _tag_change(add: Sequence[str], remove: Sequence[str]) -> Change:
    """The change of tags on the card; raises InvalidParameter for too many tags."""

    def patch_for(row: AdapterRow) -> AdapterPatch | None:
        tags = tuple(tag for tag in dict.fromkeys([*row.card.tags, *add]) if tag not in remove)
        if tags == row.card.tags:
            return None
        return _validate_patch(card={**row.card.model_dump(mode="json"), "tags": list(tags)})

    return lambda editor, ns, name: editor.patch(ns, name, patch_for)


def _parse_change(form: Mapping[str, str], *, count: int) -> Change:
    """The change that a form requests for `count` versions; raises InvalidParameter or InvalidName."""
    if not 0 < count <= MAX_VERSIONS:
        raise InvalidParameter(f"{count} versions are selected; one to {MAX_VERSIONS} can be changed at once.")
    if form.get("do") == "retire":
        if form.get("count", "").strip() != str(count):
            raise InvalidParameter(f"To retire {count}, type that number into the field.", param="count")
        return _retire
    if form.get("do") in OWNER_ACTIONS:
        owner = form.get("owner", "").strip() if form["do"] == "owner" else None
        if owner == "":
            raise InvalidParameter("Enter an owner; another button removes owners.", param="owner")
        return _owner_change(_validate_patch(owner=owner))
    add, remove = (form.get(name, "").replace(",", " ").split() for name in ("add", "remove"))
    if not add and not remove:
        raise InvalidParameter("Name a tag to add or to remove.", param="add")
    for tag in (*add, *remove):  # here, so that one error is raised and not one for each version
        check_part(tag, "tag")
    return _tag_change(add, remove)


def _validate_patch(**fields: object) -> AdapterPatch:
    """The patch with these fields; raises InvalidParameter for values that no adapter may have."""
    try:
        return AdapterPatch.model_validate(fields)
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
