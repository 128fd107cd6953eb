"""The page that holds models against each other: what they are, what is in them, and how well they predict a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from plots.charts import Interval, Panel, panels
from plots.style import THEMES
from registry.catalogue.rows import AdapterRow
from registry.errors import Cancelled, Forbidden, InvalidParameter, InvalidPrompt, SoupError
from registry.samples.texts import split_texts
from registry.spec import Recipe
from service.access.keys import Principal
from service.http.answers.lineage import lineage_of
from service.http.app_parts import AppServices
from service.http.models.named_models import ResolvedModel, resolve_model
from service.http.pages import addresses, words
from service.http.pages.forms import SAMPLE, Form, numbered, takes_form
from service.http.pages.models import MOST_MODELS, NamedModels, suggested
from service.http.pages.page import PageRoute, shown
from service.http.pages.plot_files import PlotNumber, ThemeQuery, svg_response
from service.http.pages.tables import Cell, Column, Table, csv_of
from service.http.routes.perplexity import against_the_first
from service.http.schemas.perplexity import PerplexityAnswer
from service.http.schemas.wire import Wire
from service.http.security.auth import ModelUser, Reader
from service.http.thread_turns import in_thread
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
Numbers = Annotated[Sequence[PlotNumber], Query(max_length=MOST_MODELS)]


class Compared(Wire):
    """One of the models that are held against each other."""

    model: str
    base_model: str
    kind: str
    facts: dict[str, str]
    """What is known of it, as people read it."""
    recipe: Recipe | None
    """Of a soup."""
    ingredients: dict[str, str]
    """Weights of a soup by the ref of an ingredient, or by its digest where the key does not see it."""


class Comparison(Wire):
    """What is known of some models, side by side."""

    object: Literal["comparison"] = "comparison"
    models: list[Compared]


@pages.get(addresses.COMPARE + addresses.TWIN)
def comparison(services: AppServices, principal: Reader, model: NamedModels = None) -> Comparison:
    """What the page shows."""
    resolved = [resolve_model(services, principal, name) for one in model or () if (name := one.strip())]
    found = {one.digest or one.base_id: one for one in resolved}  # each once, by whatever name it is asked for
    return Comparison(models=[_compared(services, principal, one) for one in found.values()])


@pages.get(addresses.COMPARE_CSV)
def comparison_csv(table: str, services: AppServices, principal: Reader, model: NamedModels = None) -> Response:
    """One of its tables."""
    return csv_of(tables(comparison(services, principal, model)), table)


@pages.get(addresses.COMPARE_SVG)
def compare_svg(
    principal: Reader,  # noqa: ARG001
    model: NamedModels = None,
    value: Numbers = (),
    low: Numbers = (),
    high: Numbers = (),
    theme: ThemeQuery = "light",
) -> Response:
    """The differences that the page measured, which stand in the query: nothing of a text is stored."""
    rows = [Interval(*row, chosen=True) for row in zip(model or (), value, low, high, strict=False)]
    return svg_response({"plot": partial(panels, "", [], [Panel("", rows)], theme=THEMES[theme])})


@pages.get(addresses.COMPARE)
def compare_page(request: Request, services: AppServices, principal: Reader, model: NamedModels = None) -> Response:
    """The page; what is wrong with a name is said above the form that has it."""
    try:
        return _page(request, services, principal, comparison(services, principal, model))
    except SoupError as error:
        return _page(request, services, principal, None, named=[one for one in model or () if one.strip()], error=error)


@pages.post(addresses.COMPARE)
@takes_form(SAMPLE)
async def measure(request: Request, form: Form, services: AppServices, principal: ModelUser) -> Response:
    """The page, with how well each model predicts a text: all of them against the first."""
    if not principal.has("read"):
        raise Forbidden("This key lacks the scope 'read', which the page of models that are compared needs.")
    named, text = numbered(form, "model", MOST_MODELS), form.get("text", "")
    found: Comparison | None = None
    try:
        found = await in_thread(comparison, services, principal, named)
        texts = await in_thread(_texts, found, text)
        answers = await against_the_first(request, services, principal, [one.model for one in found.models], texts)
    except Cancelled:
        raise
    except SoupError as error:
        return await in_thread(_page, request, services, principal, found, named=named, text=text, error=error)
    if form.get("as") == "csv":
        return csv_of([_scores(answers)], "scores")
    return await in_thread(_page, request, services, principal, found, text=text, answers=answers)


def _texts(found: Comparison, text: str) -> list[str]:
    """The passages that models are to predict; raises InvalidParameter, InvalidPrompt."""
    if len(found.models) < 2:
        raise InvalidParameter("Name two models at least: the others are held against the first.", param="model-2")
    if not text.strip():
        raise InvalidPrompt("Paste some text that they are to predict.", param="text")
    return split_texts(text.strip(), what="The text")


def _page(
    request: Request,
    services: Services,
    principal: Principal,
    found: Comparison | None,
    *,
    named: Sequence[str] = (),
    text: str = "",
    answers: Sequence[PerplexityAnswer] = (),
    error: SoupError | None = None,
) -> Response:
    """The page; `named` are the models of a form that could not be found."""
    models = [] if found is None else found.models
    intervals = [
        (one.model, one.baseline.difference, *one.baseline.interval)
        for one in answers
        if one.baseline is not None and one.baseline.interval is not None
    ]
    return shown(
        request,
        "compare.html",
        error=error,
        models=models,
        named=[one.model for one in models] or list(named),
        text=text,
        tables=[] if found is None else tables(found),
        scores=_scores(answers) if answers else None,
        intervals=intervals,
        suggested=suggested(services, principal),
        most=MOST_MODELS,
        may_ask=principal.has("infer"),
    )


# --- what is known of them ----------------------------------------------------------------------------


def _compared(services: Services, principal: Principal, model: ResolvedModel) -> Compared:
    """What is known of one model."""
    if model.row is None:
        facts = {"Kind": "base model", "Base model": model.base_id}
        return Compared(
            model=f"base/{model.base_id}",
            base_model=model.base_id,
            kind="base",
            facts=facts,
            recipe=None,
            ingredients={},
        )
    lineage = lineage_of(services, principal.namespaces, model.row)
    names = {one.digest: one.ref or one.digest for one in lineage.parents}
    recipe = lineage.recipe
    weights = {} if recipe is None else {names.get(one.digest, one.digest): one.weight for one in recipe.ingredients}
    return Compared(
        model=model.row.ref,
        base_model=model.base_id,
        kind=model.row.kind,
        facts=_facts(model.row, recipe),
        recipe=recipe,
        ingredients=weights,
    )


def _facts(row: AdapterRow, recipe: Recipe | None) -> dict[str, str]:
    """What is known of a stored model, as people read it."""
    return {
        "Kind": ("tuned soup" if row.tuned else "soup") if row.kind == "soup" else "adapter",
        "Base model": row.base_model,
        "Domain": row.domain,
        "Method": row.config.method,
        "Parameters": words.count(row.parameters),
        "Size": words.size(row.size_bytes),
        "Stored as": row.dtype,
        "Added": words.in_words(row.created_at),
        "Mixed by": "" if recipe is None else recipe.mixing.method,
        "Digest": row.digest,
    }


def tables(found: Comparison) -> list[Table]:
    """What they are, and what is in those that are soups; a column for each model."""
    models = found.models
    columns = (Column("What"), *(Column(one.model) for one in models))
    known = list(dict.fromkeys(name for one in models for name in one.facts))
    facts = tuple((name, *(one.facts.get(name) for one in models)) for name in known)
    mixed = list(dict.fromkeys(ref for one in models for ref in one.ingredients))
    rows: list[tuple[Cell, ...]] = [
        (ref, *(float(one.ingredients[ref]) if ref in one.ingredients else None for one in models)) for ref in mixed
    ]
    weighed = (Column("Ingredient", "model"), *(Column(one.model, "number") for one in models))
    all_tables = [
        Table("facts", "What they are", columns, facts),
        Table("recipes", "What is in them, by weight", weighed, tuple(rows)),
    ]
    return [table for table in all_tables if models and table.rows]


# --- how well they predict a text -----------------------------------------------------------------------


def _scores(answers: Sequence[PerplexityAnswer]) -> Table:
    """The first model, and the others against it."""
    columns = (
        Column("Model", "model"),
        Column("Perplexity", "number"),
        Column("Against the first", "difference"),
        Column("From", "difference"),
        Column("To", "difference"),
    )
    rows: list[tuple[Cell, ...]] = []
    for one in answers:
        first: Any = one.baseline
        rows = rows or [(first.model, first.perplexity, None, None, None)]
        low, high = first.interval or (None, None)
        rows.append((one.model, one.perplexity, first.difference, low, high))
    texts = len(answers[0].texts) if answers else 0
    caption = (
        f"Perplexity on {texts} {'passage' if texts == 1 else 'passages'}, and mean NLL per token against the first"
    )
    return Table("scores", caption, columns, tuple(rows))
