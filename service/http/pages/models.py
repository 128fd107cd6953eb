"""The page of models: adapters and soups that a key sees, searched and filtered as `GET /v1/adapters` does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from registry.catalogue.rows import Kind
from registry.errors import InvalidParameter
from registry.names import KeyScope
from registry.spec import UNION_MEMBERS
from service.access.keys import Principal
from service.engine.text_support import why_no_text
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import Text
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.requests.paging import Cursor, Limit
from service.http.routes.adapters import list_adapters
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader, needs
from service.parts import Services

Anybody = Annotated[Principal, Depends(needs(*get_args(KeyScope)))]
pages = APIRouter(route_class=PageRoute, include_in_schema=False)
Use = Literal["yes", "scope", "base", "text"]
"""Whether a key may ask for a model: if not, it lacks the scope `infer`, the base model is not served, or the model
gives no text."""


GAINS = 8
"""Of a soup's gains, the newest that its row shows."""
MOST_MODELS = 4
NamedModels = Annotated[list[str] | None, Query(max_length=MOST_MODELS)]
"""The models that the address of a page names side by side."""
SUGGESTED = 100
"""Adapters and soups that a field for a model offers."""


class Filters(Wire):
    """What is looked for, as `GET /v1/adapters` takes it; what a form leaves empty is not asked for."""

    q: str | None = None
    base_model: str | None = None
    method: str | None = None
    domain: str | None = None
    owner: str | None = None
    namespace: str | None = None
    name: str | None = None
    tag: list[str] = Field(default_factory=list)
    kind: Kind | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that are asked for."""
        return {name: value for name, value in self.model_dump().items() if value}


def filters(
    q: Text = None,
    base_model: Text = None,
    method: Text = None,
    domain: Text = None,
    owner: Text = None,
    namespace: Text = None,
    name: Text = None,
    tag: Annotated[list[str] | None, Query()] = None,
    kind: Text = None,
) -> Filters:
    """The filters of a query; a tag field may have several, with blanks between them."""
    kinds = {one: one for one in get_args(Kind)}
    if kind and kind not in kinds:
        raise InvalidParameter(f"'kind' is one of {', '.join(kinds)}.", param="kind")
    texts = {
        "q": q,
        "base_model": base_model,
        "method": method,
        "domain": domain,
        "owner": owner,
        "namespace": namespace,
        "name": name,
    }
    given = {field: value.strip() or None for field, value in texts.items() if value is not None}
    return Filters(**given, tag=[one for text in tag or () for one in text.split()], kind=kinds[kind] if kind else None)


Asked = Annotated[Filters, Depends(filters)]


class AliasChip(Wire):
    """An alias that points at a version, and whether only an admin moves it."""

    alias: str
    protected: bool


class ListedModel(Wire):
    """An adapter or soup as the page lists it."""

    adapter: ListedAdapter
    aliases: list[AliasChip]
    """Those that point at this version."""
    use: Use
    gains: list[float]
    """Of a soup, each time that it was verified: by what share its perplexity was lower than the base's (negative:
    higher). The newest is last."""


class ModelList(Wire):
    """One page of models, newest first."""

    object: Literal["list"] = "list"
    filters: Filters
    data: list[ListedModel]
    next_cursor: str | None


@pages.get(addresses.HOME)
def home(principal: Anybody) -> Response:
    """The first page: models for whoever may see them, else where they can be asked, else what every key may see."""
    if principal.has("read"):
        return gone_to(addresses.MODELS)
    return gone_to(addresses.PLAYGROUND if principal.has("infer") else addresses.USAGE)


@pages.get(addresses.MODELS + addresses.TWIN)
def models(
    services: AppServices, principal: Reader, asked: Asked, limit: Limit = None, cursor: Cursor = None
) -> ModelList:
    """What the page shows."""
    found = list_adapters(services, principal, **asked.model_dump(), limit=limit, cursor=cursor)
    aliases, gains = aliases_of(services, found.data), gains_of(services, found.data)
    listed = [
        ListedModel(
            adapter=one,
            aliases=aliases.get(one.ref, []),
            use=use_of(services, principal, one),
            gains=gains.get(one.ref, []),
        )
        for one in found.data
    ]
    return ModelList(filters=asked, data=listed, next_cursor=found.next_cursor)


@pages.get(addresses.MODELS)
def models_page(
    request: Request, services: AppServices, principal: Reader, asked: Asked, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """The page."""
    found = models(services, principal, asked, limit, cursor)
    return shown(
        request,
        "models.html",
        found=found,
        asked=asked,
        limit=limit,
        cursor=cursor,
        bases=sorted(services.bases),
        methods=sorted(UNION_MEMBERS["config"]),
        kinds=get_args(Kind),
    )


# --- what is found out for a row ------------------------------------------------------------------


def aliases_of(services: Services, rows: Sequence[ListedAdapter]) -> dict[str, list[AliasChip]]:
    """The aliases that point at these versions, by ref."""
    found: dict[str, list[AliasChip]] = {}
    names = sorted({(row.namespace, row.name) for row in rows})
    with services.registry.database.read() as catalogue:
        protected = {
            namespace: catalogue.namespaces.get(namespace).protected_aliases for namespace in {ns for ns, _ in names}
        }
        for one in catalogue.aliases.of(names):
            chip = AliasChip(alias=one.alias, protected=one.alias in protected[one.namespace])
            found.setdefault(f"{one.namespace}/{one.name}@{one.version}", []).append(chip)
    return found


def gains_of(services: Services, rows: Sequence[ListedAdapter]) -> dict[str, list[float]]:
    """What the soups among these versions took off the base's perplexity, by ref."""
    soups = [(row.namespace, row.name, row.version) for row in rows if row.kind == "soup"]
    if not soups:
        return {}
    with services.registry.database.read() as catalogue:
        found = catalogue.soups.verifications(soups, most=GAINS)
    return {
        f"{namespace}/{name}@{version}": [1 - math.exp(check["difference"]) for check in checks]
        for (namespace, name, version), checks in found.items()
    }


def use_of(services: Services, principal: Principal, row: ListedAdapter) -> Use:
    """Whether a key may ask for a model."""
    if row.base_model not in services.bases:
        return "base"
    if why_no_text(services.bases[row.base_model].shape, row.config) is not None:
        return "text"
    return "yes" if principal.has("infer") else "scope"


def suggested(services: Services, principal: Principal) -> list[str]:
    """What a field for a model offers: base models that answer with text, and the newest adapters and soups that do."""
    bases = [f"base/{id}" for id, base in sorted(services.bases.items()) if why_no_text(base.shape, None) is None]
    newest = list_adapters(services, principal, limit=min(SUGGESTED, services.settings.max_page_size)).data
    return bases + [one.ref for one in newest if use_of(services, principal, one) in {"yes", "scope"}]
