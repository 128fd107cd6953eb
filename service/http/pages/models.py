"""The page of models: the adapters and soups that a key sees, with the search and filters of `GET /v1/adapters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from registry.catalogue.rows import Kind
from registry.names import KeyScope
from registry.spec import UNION_MEMBERS, BaseId
from registry.spec.score import relative_change
from service.access.keys import Principal
from service.engine.text_support import why_no_text
from service.http.app_services import AppServices
from service.http.pages.forms import Fields, text_or_none
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.requests.parameters import Cursor, Limit
from service.http.routes.adapters import AdapterListQuery, list_adapters
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader, needs
from service.services import Services

FilterText = Annotated[str | None, Field(max_length=500), BeforeValidator(text_or_none)]
Anybody = Annotated[Principal, Depends(needs(*get_args(KeyScope)))]
pages = APIRouter(route_class=PageRoute, include_in_schema=False)
Use = Literal["yes", "scope", "base", "text"]
"""Access of a key to a model: "yes", or the reason why not. The key lacks the scope `infer`, the base model is not
served, or the model does not generate text."""
MAX_GAINS = 8
"""The newest gains of a soup that its row shows."""
MAX_MODELS = 4
ModelNames = Annotated[list[str] | None, Query(max_length=MAX_MODELS)]
"""The models side by side on a page, as its URL names them."""
MAX_SUGGESTED = 100
"""Adapters and soups that an input for a model suggests."""


class Filters(BaseModel):
    """The search and filters of `GET /v1/adapters` as a form sends them: blank texts do not filter."""

    q: FilterText = None
    base_model: Annotated[BaseId | None, BeforeValidator(text_or_none)] = None
    method: FilterText = None
    domain: FilterText = None
    owner: FilterText = None
    namespace: FilterText = None
    name: FilterText = None
    tag: Annotated[list[str], AfterValidator(lambda fields: " ".join(fields).split())] = Field(default_factory=list)
    """Tags; one parameter may have several, separated by blanks."""
    kind: Annotated[Kind | None, BeforeValidator(text_or_none)] = None

    @property
    def active(self) -> dict[str, Any]:
        """The filters that are set."""
        return {name: value for name, value in self.model_dump().items() if value}


def query_filters(query: Annotated[Filters, Query()]) -> Filters:
    """The filters of a query, which may have other parameters."""
    return query


QueryFilters = Annotated[Filters, Depends(query_filters)]


class AliasChip(Wire):
    """An alias of a version; if protected, only an admin may move it."""

    alias: str
    protected: bool


class ListedModel(Wire):
    """A row of the page."""

    adapter: ListedAdapter
    aliases: list[AliasChip]
    """The aliases of this version."""
    use: Use
    gains: list[float]
    """The relative reduction of the base model's perplexity by a soup (negative if higher), at each verification,
    newest last."""
    ingredients: list[str]
    """The domains of a soup's ingredients, heaviest first, without those of namespaces that the key does not see."""


class ModelList(Wire):
    """Models, newest first."""

    object: Literal["list"] = "list"
    filters: Filters
    data: list[ListedModel]
    next_cursor: str | None


@pages.get("/")
def home(principal: Anybody) -> Response:
    """A redirect to the first of Models, Playground and Usage that the key may see."""
    if principal.has("read"):
        return redirect_to("/models")
    return redirect_to("/playground" if principal.has("infer") else "/usage")


@pages.get("/models.json")
def models(
    services: AppServices, principal: Reader, filters: QueryFilters, limit: Limit = None, cursor: Cursor = None
) -> ModelList:
    """The content of the page."""
    adapters = list_adapters(services, principal, AdapterListQuery(**filters.model_dump(), limit=limit, cursor=cursor))
    aliases, gains = aliases_by_ref(services, adapters.data), gains_by_ref(services, adapters.data)
    ingredients = ingredients_by_ref(services, principal, adapters.data)
    rows = [
        ListedModel(
            adapter=adapter,
            aliases=aliases.get(adapter.ref, []),
            use=use_of(services, principal, adapter),
            gains=gains.get(adapter.ref, []),
            ingredients=ingredients.get(adapter.ref, []),
        )
        for adapter in adapters.data
    ]
    return ModelList(filters=filters, data=rows, next_cursor=adapters.next_cursor)


@pages.get("/models")
def models_page(
    request: Request,
    services: AppServices,
    principal: Reader,
    filters: QueryFilters,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The page; without a search the best soup of the first page stands above the list."""
    listed = models(services, principal, filters, limit, cursor)
    return render_page(
        request,
        "models.html",
        models=listed,
        best=None if filters.active or cursor else best_soup(listed.data),
        filters=filters,
        limit=limit,
        cursor=cursor,
        bases=sorted(services.bases),
        methods=sorted(UNION_MEMBERS["config"]),
        kinds=get_args(Kind),
    )


def models_of_form(form: Fields) -> list[str]:
    """The distinct models that a form names in its fields `model-1` to `model-4`."""
    names = [form.get(f"model-{number}", "").strip() for number in range(1, MAX_MODELS + 1)]
    return list(dict.fromkeys(filter(None, names)))


# --- what a row shows beside its adapter ----------------------------------------------------------


def aliases_by_ref(services: Services, rows: Sequence[ListedAdapter]) -> dict[str, list[AliasChip]]:
    """The aliases of these versions, by ref."""
    chips: dict[str, list[AliasChip]] = {}
    names = sorted({(row.namespace, row.name) for row in rows})
    with services.registry.database.read() as catalogue:
        protected = {
            namespace: catalogue.namespaces.get(namespace).protected_aliases
            for namespace in {row.namespace for row in rows}
        }
        for row in catalogue.aliases.by_names(names):
            chip = AliasChip(alias=row.alias, protected=row.alias in protected[row.namespace])
            chips.setdefault(f"{row.namespace}/{row.name}@{row.version}", []).append(chip)
    return chips


def gains_by_ref(services: Services, rows: Sequence[ListedAdapter]) -> dict[str, list[float]]:
    """The share of the base's perplexity that each soup saves, for each of its verifications, by ref."""
    soups = [(row.namespace, row.name, row.version) for row in rows if row.kind == "soup"]
    if not soups:
        return {}
    with services.registry.database.read() as catalogue:
        verifications = catalogue.soups.verifications(soups, most=MAX_GAINS)
    return {
        f"{namespace}/{name}@{version}": [-relative_change(check["difference"]) for check in checks]
        for (namespace, name, version), checks in verifications.items()
    }


def ingredients_by_ref(services: Services, principal: Principal, rows: Sequence[ListedAdapter]) -> dict[str, list[str]]:
    """The domains of the visible ingredients of each soup, heaviest first and each once, by ref."""
    recipes = {row.ref: row.recipe_digest for row in rows if row.kind == "soup" and row.recipe_digest is not None}
    if not recipes:
        return {}
    with services.registry.database.read() as catalogue:
        domains = catalogue.soups.ingredient_domains(set(recipes.values()), principal.namespaces)
    return {ref: list(dict.fromkeys(filter(None, domains.get(digest, ())))) for ref, digest in recipes.items()}


def best_soup(rows: Sequence[ListedModel]) -> ListedModel | None:
    """The soup with the greatest gain at its last verification; None if no soup has a gain."""
    gaining = [row for row in rows if row.gains and row.gains[-1] > 0]
    return max(gaining, key=lambda row: row.gains[-1], default=None)


def use_of(services: Services, principal: Principal, row: ListedAdapter) -> Use:
    """Return "yes" if a key may call a model, else the reason why not."""
    if row.base_model not in services.bases:
        return "base"
    if why_no_text(services.bases[row.base_model].shape, row.config) is not None:
        return "text"
    return "yes" if principal.has("infer") else "scope"


def suggested_models(services: Services, principal: Principal) -> list[str]:
    """Names that an input for a model suggests: base models, then the newest adapters, all that answer with text."""
    bases = [f"base/{id}" for id, base in sorted(services.bases.items()) if why_no_text(base.shape, None) is None]
    query = AdapterListQuery(limit=min(MAX_SUGGESTED, services.settings.max_page_size))
    newest = list_adapters(services, principal, query)
    return bases + [row.ref for row in newest.data if use_of(services, principal, row) in {"yes", "scope"}]
