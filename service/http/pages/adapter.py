"""The page of one version of an adapter or soup: its card, files, lineage and usage, and how to call it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from plots.charts import MAX_LINEAGE, lineage
from plots.style import THEMES
from registry.catalogue.rows import AdapterRow
from service.http.answers.lineage import lineage_of
from service.http.app_services import AppServices
from service.http.models.named_models import adapter_named
from service.http.pages.cookies import is_secure
from service.http.pages.downloads import ThemeQuery, csv_response, svg_response
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
from service.http.routes.activity import UsageListQuery, get_usage
from service.http.routes.adapters import AdapterListQuery, get_file, list_adapters, list_files
from service.http.schemas.activity import UsageList, UsageTotal
from service.http.schemas.adapters import Adapter, Lineage, StoredFile, adapter_body
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_VERSIONS = 20
"""Versions of the same name that are linked."""
HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", re.ASCII)
"""A host with an optional port that can be copied into a shell."""
PROMPT = "Once upon a time"
"""The prompt in the commands."""


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


@pages.get("/models/{ns}/{name}.json")
def model(ns: str, name: str, services: AppServices, principal: Reader) -> ModelPage:
    """The content of the page."""
    row = adapter_named(services, principal, ns, name)
    body, lineage = adapter_body(row), lineage_of(services, principal.namespaces, row)
    query = AdapterListQuery(name=f"{row.namespace}/{row.name}", limit=MAX_VERSIONS)
    versions = list_adapters(services, principal, query)
    usage = get_usage(services, principal, UsageListQuery(model=row.ref, by=["model"]))
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


@pages.get("/models/{ns}/{name}")
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


@pages.get("/models/{ns}/{name}/{table}.csv")
def model_csv(ns: str, name: str, table: str, services: AppServices, principal: Reader) -> Response:
    """The table of all losses."""
    row = adapter_named(services, principal, ns, name)
    losses = _losses(row, lineage_of(services, principal.namespaces, row))
    return csv_response([] if losses is None else [losses_table(losses)], table)


@pages.get("/models/{ns}/{name}/{plot}.svg")
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


@pages.get("/models/{ns}/{name}/files/{file}")
def file(request: Request, ns: str, name: str, file: str, services: AppServices, principal: Reader) -> Response:
    """A file of the adapter; a browser with a session does not cache it."""
    response = get_file(request, ns, name, file, services, principal)
    if getattr(request.state, "session", None) is not None:
        response.headers["cache-control"] = "no-store"
    return response


def _losses(row: AdapterRow, lineage: Lineage) -> Losses | None:
    """The losses of a tuned soup's tuning, else of the adapter's training."""
    return tuning_losses(lineage.evidence) if row.tuned else training_losses(row.provenance.training)


# --- commands to call and fetch a model -----------------------------------------------------------------


@dataclass(frozen=True)
class Snippet:
    """A command with its title, which names the tool."""

    title: str
    text: str


def server_origin(request: Request) -> str:
    """The scheme and host by which this browser reaches the server."""
    settings = request.app.state.runtime.settings
    host = request.headers.get("host", "")
    host = host if HOST.fullmatch(host) else f"{settings.host}:{settings.port}"
    return f"{'https' if is_secure(request.scope, settings) else 'http'}://{host}"


def snippets(origin: str, ref: str, *, answers_text: bool) -> list[Snippet]:
    """Commands to call the model `ref`, if it answers with text, and to fetch it."""
    environment = f"export SOUP_URL={origin} SOUP_KEY=sk-soup-..."
    fetch = Snippet("Fetch its directory (soup)", f"{environment}\nsoup pull {ref} adapter")
    if not answers_text:
        return [fetch]
    curl = (
        f"curl {origin}/v1/completions \\\n"
        '  -H "authorization: Bearer $SOUP_KEY" -H "content-type: application/json" \\\n'
        f'  -d \'{{"model": "{ref}", "prompt": "{PROMPT}", "max_tokens": 40}}\''
    )
    python = (
        "import os\n\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{origin}/v1", api_key=os.environ["SOUP_KEY"])\n'
        f'answer = client.completions.create(model="{ref}", prompt="{PROMPT}", max_tokens=40)\n'
        "print(answer.choices[0].text)"
    )
    soup = f'{environment}\nsoup generate {ref} "{PROMPT}" --max-tokens 40'
    return [
        Snippet("curl", curl),
        Snippet("Python (openai)", python),
        Snippet("Command line (soup)", soup),
        fetch,
    ]
