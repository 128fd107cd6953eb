"""The page of one version of an adapter or soup: card, files, lineage, use, and how it is asked."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from plots.charts import MAX_LINEAGE, lineage
from plots.style import THEMES
from registry.catalogue.rows import AdapterRow
from service.access.keys import Principal
from service.http.answers.lineage import lineage_of
from service.http.app_parts import AppServices
from service.http.models.named_models import adapter_named
from service.http.pages import addresses
from service.http.pages.losses import Losses, losses_plots, losses_table, losses_values, of_record, of_tuning
from service.http.pages.models import AliasChip, Use, aliases_of, use_of
from service.http.pages.page import PageRoute, shown
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.pages.snippets import origin_of, snippets
from service.http.pages.tables import csv_of
from service.http.routes.adapters import get_file, list_adapters, list_files
from service.http.routes.usage import get_usage
from service.http.schemas.adapters import Adapter, Lineage, StoredFile, adapter_body
from service.http.schemas.usage import UsageList, UsageTotal
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
VERSIONS = 20
"""Of one name that are linked."""


class ModelPage(Wire):
    """What is known of one version of an adapter or soup."""

    adapter: Adapter
    aliases: list[AliasChip]
    use: Use
    versions: list[str]
    """The newest live ones of the name, by ref."""
    files: list[StoredFile]
    lineage: Lineage
    losses: Losses | None
    """Of its training, as its record says them, or of the tuning of a soup; null where it says none."""
    used: UsageTotal
    """By this key, or with scope admin in its namespaces."""


@pages.get(addresses.MODEL + addresses.TWIN)
def model(ns: str, name: str, services: AppServices, principal: Reader) -> ModelPage:
    """What the page shows."""
    return of_row(services, principal, adapter_named(services, principal, ns, name))


@pages.get(addresses.MODEL)
def model_page(request: Request, ns: str, name: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    found = of_row(services, principal, adapter_named(services, principal, ns, name))
    row = found.adapter
    ways = snippets(origin_of(request), found.adapter.ref, speaks=found.use in {"yes", "scope"})
    return shown(
        request,
        "adapter.html",
        found=found,
        most_in_plot=MAX_LINEAGE,
        snippets=ways,
        place=f"/models/{row.namespace}/{row.name}@{row.version}",
        **losses_values(found.losses),
    )


@pages.get(addresses.MODEL_CSV)
def model_csv(ns: str, name: str, table: str, services: AppServices, principal: Reader) -> Response:
    """Its losses, all of them."""
    row = adapter_named(services, principal, ns, name)
    losses = _losses(row, lineage_of(services, principal.namespaces, row))
    return csv_of([] if losses is None else [losses_table(losses)], table)


@pages.get(addresses.MODEL_SVG)
def model_svg(
    ns: str, name: str, plot: str, services: AppServices, principal: Reader, theme: ThemeQuery = "light"
) -> Response:
    """Its lineage or its losses as a plot."""
    row = adapter_named(services, principal, ns, name)
    relatives = lineage_of(services, principal.namespaces, row)
    drawings = {**losses_plots(_losses(row, relatives), THEMES[theme])}
    if relatives.parents or relatives.children:
        parents = [(one.ref or one.digest, float(one.weight)) for one in relatives.parents]
        children = [child.ref for child in relatives.children]
        drawings["lineage"] = partial(lineage, row.ref, parents, children, theme=THEMES[theme])
    return svg_response(drawings, plot)


@pages.get(addresses.MODEL_FILE)
def file(request: Request, ns: str, name: str, file: str, services: AppServices, principal: Reader) -> Response:
    """One of its files, to be kept by whoever fetches it; a browser that signed in forgets it, as it does pages."""
    answer = get_file(request, ns, name, file, services, principal)
    if getattr(request.state, "session", None) is not None:
        answer.headers["cache-control"] = "no-store"
    return answer


def of_row(services: Services, principal: Principal, row: AdapterRow) -> ModelPage:
    """Everything that the page shows of a row."""
    body, lineage = adapter_body(row), lineage_of(services, principal.namespaces, row)
    name = f"{row.name}@{row.version}"
    versions = list_adapters(services, principal, name=f"{row.namespace}/{row.name}", limit=VERSIONS)
    used = get_usage(services, principal, model=row.ref, by=["model"])
    assert isinstance(used, UsageList)
    return ModelPage(
        adapter=body,
        aliases=aliases_of(services, [body]).get(row.ref, []),
        use=use_of(services, principal, body),
        versions=[one.ref for one in versions.data],
        files=list_files(row.namespace, name, services, principal).data,
        lineage=lineage,
        losses=_losses(row, lineage),
        used=used.total,
    )


def _losses(row: AdapterRow, lineage: Lineage) -> Losses | None:
    """Of the tuning where it was tuned, else of its own training."""
    return of_tuning(lineage.evidence) if row.tuned else of_record(row.provenance.training)
