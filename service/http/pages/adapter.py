"""The page of one version of an adapter or soup: its card, files, lineage and usage, and how to call it."""

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
from service.http.pages import paths
from service.http.pages.losses import (
    Losses,
    losses_context,
    losses_drawings,
    losses_table,
    training_losses,
    tuning_losses,
)
from service.http.pages.models import AliasChip, Use, aliases_by_ref, use_of
from service.http.pages.page import PageRoute, render_page
from service.http.pages.plot_files import ThemeQuery, svg_response
from service.http.pages.snippets import server_origin, snippets
from service.http.pages.tables import csv_response
from service.http.routes.adapters import get_file, list_adapters, list_files
from service.http.routes.usage import get_usage
from service.http.schemas.adapters import Adapter, Lineage, StoredFile, adapter_body
from service.http.schemas.usage import UsageList, UsageTotal
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_VERSIONS = 20
"""Versions of the same name that are linked."""


class ModelPage(Wire):
    """The content of the page."""

    adapter: Adapter
    aliases: list[AliasChip]
    use: Use
    versions: list[str]
    """The refs of the newest live versions of the name."""
    files: list[StoredFile]
    lineage: Lineage
    losses: Losses | None
    """Of the training in the adapter's record, or of the tuning of a soup; null if none is recorded."""
    used: UsageTotal
    """By this key; with scope admin by all keys in its namespaces."""


@pages.get(paths.MODEL + paths.JSON)
def model(ns: str, name: str, services: AppServices, principal: Reader) -> ModelPage:
    """The content of the page."""
    return _model_page(services, principal, adapter_named(services, principal, ns, name))


@pages.get(paths.MODEL)
def model_page(request: Request, ns: str, name: str, services: AppServices, principal: Reader) -> Response:
    """The page."""
    page = model(ns, name, services, principal)
    adapter = page.adapter
    answers_text = page.use in {"yes", "scope"}
    return render_page(
        request,
        "adapter.html",
        page=page,
        max_lineage=MAX_LINEAGE,
        snippets=snippets(server_origin(request), adapter.ref, answers_text=answers_text),
        page_path=f"/models/{adapter.namespace}/{adapter.name}@{adapter.version}",
        **losses_context(page.losses),
    )


@pages.get(paths.MODEL_CSV)
def model_csv(ns: str, name: str, table: str, services: AppServices, principal: Reader) -> Response:
    """The table of all losses."""
    row = adapter_named(services, principal, ns, name)
    losses = _losses(row, lineage_of(services, principal.namespaces, row))
    return csv_response([] if losses is None else [losses_table(losses)], table)


@pages.get(paths.MODEL_SVG)
def model_svg(
    ns: str, name: str, plot: str, services: AppServices, principal: Reader, theme: ThemeQuery = "light"
) -> Response:
    """The plot of the lineage or of the losses."""
    row = adapter_named(services, principal, ns, name)
    relatives = lineage_of(services, principal.namespaces, row)
    drawings = {**losses_drawings(_losses(row, relatives), THEMES[theme])}
    if relatives.parents or relatives.children:
        parents = [(parent.ref or parent.digest, float(parent.weight)) for parent in relatives.parents]
        children = [child.ref for child in relatives.children]
        drawings["lineage"] = partial(lineage, row.ref, parents, children, theme=THEMES[theme])
    return svg_response(drawings, plot)


@pages.get(paths.MODEL_FILE)
def file(request: Request, ns: str, name: str, file: str, services: AppServices, principal: Reader) -> Response:
    """A file of the adapter; a browser with a session does not cache it."""
    response = get_file(request, ns, name, file, services, principal)
    if getattr(request.state, "session", None) is not None:
        response.headers["cache-control"] = "no-store"
    return response


def _model_page(services: Services, principal: Principal, row: AdapterRow) -> ModelPage:
    body, lineage = adapter_body(row), lineage_of(services, principal.namespaces, row)
    versions = list_adapters(services, principal, name=f"{row.namespace}/{row.name}", limit=MAX_VERSIONS)
    usage = get_usage(services, principal, model=row.ref, by=["model"])
    assert isinstance(usage, UsageList)
    return ModelPage(
        adapter=body,
        aliases=aliases_by_ref(services, [body]).get(row.ref, []),
        use=use_of(services, principal, body),
        versions=[version.ref for version in versions.data],
        files=list_files(row.namespace, f"{row.name}@{row.version}", services, principal).data,
        lineage=lineage,
        losses=_losses(row, lineage),
        used=usage.total,
    )


def _losses(row: AdapterRow, lineage: Lineage) -> Losses | None:
    """The losses of a tuned soup's tuning, else of the adapter's training."""
    return tuning_losses(lineage.evidence) if row.tuned else training_losses(row.provenance.training)
