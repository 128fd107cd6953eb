"""The page that compares models: their properties, their ingredients, and how well they predict a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from plots.charts import Interval, Panel, panels
from plots.style import THEMES
from registry.catalogue.rows import AdapterRow
from registry.errors import Cancelled, Forbidden, InvalidParameter, InvalidPrompt, SoupError
from registry.samples.texts import split_texts
from registry.spec import Passage, Recipe
from service.access.keys import Principal
from service.http.answers.lineage import lineage_of
from service.http.answers.perplexity import compare_with_first
from service.http.app_services import AppServices
from service.http.models.named_models import ResolvedModel, resolve_model
from service.http.pages import filters
from service.http.pages.downloads import Cell, Column, PlotNumber, Table, ThemeQuery, csv_response, svg_response
from service.http.pages.forms import SAMPLE, Form, takes_form
from service.http.pages.models import MAX_MODELS, ModelNames, models_of_form, suggested_models
from service.http.pages.page import PageRoute, render_page
from service.http.schemas.perplexity import PerplexityAnswer
from service.http.schemas.wire import Wire
from service.http.security.auth import ModelUser, Reader, needs
from service.http.thread_turns import in_thread
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
Numbers = Annotated[Sequence[PlotNumber], Query(max_length=MAX_MODELS)]


class ModelFacts(Wire):
    """The properties and ingredients of one model."""

    model: str
    base_model: str
    kind: str
    facts: dict[str, str]
    """Its properties as text, by their labels."""
    recipe: Recipe | None
    """The recipe of a soup."""
    ingredients: dict[str, str]
    """Weights of a soup by the ref of the ingredient, or by its digest if the key does not see it."""


class Comparison(Wire):
    """Models side by side."""

    object: Literal["comparison"] = "comparison"
    models: list[ModelFacts]


@dataclass(frozen=True)
class CompareForm:
    """The names of models and the text that were entered in the form."""

    names: list[str] = field(default_factory=list)
    text: str = ""


@pages.get("/compare.json")
def comparison(services: AppServices, principal: Reader, model: ModelNames = None) -> Comparison:
    """The content of the page, each model once whatever its names."""
    resolved = [resolve_model(services, principal, name.strip()) for name in model or () if name.strip()]
    distinct = {entry.identity: entry for entry in resolved}
    return Comparison(models=[_model_facts(services, principal, entry) for entry in distinct.values()])


@pages.get("/compare/{table}.csv")
def comparison_csv(table: str, services: AppServices, principal: Reader, model: ModelNames = None) -> Response:
    """A table of the page as a CSV file."""
    return csv_response(comparison_tables(comparison(services, principal, model)), table)


@pages.get("/compare/plot.svg", dependencies=[Depends(needs("read"))])
def compare_svg(
    model: ModelNames = None,
    value: Numbers = (),
    low: Numbers = (),
    high: Numbers = (),
    theme: ThemeQuery = "light",
) -> Response:
    """The differences that the page measured, which come with the query because no text is stored."""
    rows = [Interval(*row, chosen=True) for row in zip(model or (), value, low, high, strict=False)]
    return svg_response({"plot": partial(panels, "", [], [Panel("", rows)], theme=THEMES[theme])})


@pages.get("/compare")
def compare_page(request: Request, services: AppServices, principal: Reader, model: ModelNames = None) -> Response:
    """The page; an error in a name is shown above the form."""
    try:
        compared = comparison(services, principal, model)
    except SoupError as error:
        names = [name for name in model or () if name.strip()]
        return _page(request, services, principal, None, CompareForm(names), error=error)
    return _page(request, services, principal, compared)


@pages.post("/compare")
@takes_form(SAMPLE)
async def measure(request: Request, form: Form, services: AppServices, principal: ModelUser) -> Response:
    """The page with the perplexity of a text under each model, compared with the first."""
    if not principal.has("read"):
        raise Forbidden("This key lacks the scope 'read', which the comparison of models needs.")
    entered = CompareForm(models_of_form(form), form.get("text", ""))
    compared: Comparison | None = None
    try:
        compared = await in_thread(comparison, services, principal, entered.names)
        texts = await in_thread(_split_text, compared, entered.text)
        refs = [model.model for model in compared.models]
        answers = await compare_with_first(request, services, principal, refs, texts)
    except Cancelled:
        raise
    except SoupError as error:
        return await in_thread(_page, request, services, principal, compared, entered, error=error)
    if form.get("as") == "csv":
        return csv_response([_scores_table(answers)], "scores")
    return await in_thread(_page, request, services, principal, compared, entered, answers=answers)


def _split_text(compared: Comparison, text: str) -> list[Passage]:
    """The passages of the text that models are scored on; raises InvalidParameter, InvalidPrompt."""
    if len(compared.models) < 2:
        raise InvalidParameter("Name at least two models: the others are compared with the first.", param="model-2")
    if not text.strip():
        raise InvalidPrompt("Paste some text to score.", param="text")
    return split_texts(text.strip(), label="The text")


def _page(
    request: Request,
    services: Services,
    principal: Principal,
    compared: Comparison | None,
    entered: CompareForm = CompareForm(),
    *,
    answers: Sequence[PerplexityAnswer] = (),
    error: SoupError | None = None,
) -> Response:
    """The page; without `compared` models the form has the names that could not be resolved."""
    models = [] if compared is None else compared.models
    intervals = [
        (answer.model, answer.baseline.difference, *answer.baseline.interval)
        for answer in answers
        if answer.baseline is not None and answer.baseline.interval is not None
    ]
    return render_page(
        request,
        "compare.html",
        error=error,
        models=models,
        model_names=[model.model for model in models] or entered.names,
        text=entered.text,
        tables=[] if compared is None else comparison_tables(compared),
        scores=_scores_table(answers) if answers else None,
        intervals=intervals,
        suggested=suggested_models(services, principal),
        max_models=MAX_MODELS,
    )


# --- properties and ingredients -----------------------------------------------------------------------


def _model_facts(services: Services, principal: Principal, model: ResolvedModel) -> ModelFacts:
    if len(model.rows) != 1:
        kind = "mixture, not stored" if model.rows else "base model"
        return ModelFacts(
            model=model.name if model.rows else f"base/{model.base_id}",
            base_model=model.base_id,
            kind="soup" if model.rows else "base",
            facts={"Kind": kind, "Base model": model.base_id},
            recipe=None,
            ingredients={row.ref: f"{share:.6g}" for row, share in model.rows},
        )
    [(row, _)] = model.rows
    lineage = lineage_of(services, principal.namespaces, row)
    names = {parent.digest: parent.ref or parent.digest for parent in lineage.parents}
    ingredients = () if lineage.recipe is None else lineage.recipe.ingredients
    return ModelFacts(
        model=row.ref,
        base_model=model.base_id,
        kind=row.kind,
        facts=_facts(row, lineage.recipe),
        recipe=lineage.recipe,
        ingredients={names.get(item.digest, item.digest): item.weight for item in ingredients},
    )


def _facts(row: AdapterRow, recipe: Recipe | None) -> dict[str, str]:
    """The properties of a stored model as text, by their labels."""
    return {
        "Kind": ("tuned soup" if row.tuned else "soup") if row.kind == "soup" else "adapter",
        "Base model": row.base_model,
        "Domain": row.domain,
        "Method": row.config.method,
        "Parameters": filters.thousands(row.parameters),
        "Size": filters.file_size(row.size_bytes),
        "Data type": row.dtype,
        "Added": filters.long_date(row.created_at),
        "Mixing method": "" if recipe is None else recipe.mixing.method,
        "Digest": row.digest,
    }


def comparison_tables(compared: Comparison) -> list[Table]:
    """The tables of properties and of soups' ingredients, with a column for each model; empty ones are left out."""
    models = compared.models
    labels = dict.fromkeys(label for model in models for label in model.facts)
    facts = tuple((label, *(model.facts.get(label) for model in models)) for label in labels)
    refs = dict.fromkeys(ref for model in models for ref in model.ingredients)
    weights = tuple(
        (ref, *(float(model.ingredients[ref]) if ref in model.ingredients else None for model in models))
        for ref in refs
    )
    text_columns = (Column("What"), *(Column(model.model) for model in models))
    weight_columns = (Column("Ingredient", "model"), *(Column(model.model, "number") for model in models))
    tables = [
        Table("facts", "Properties", text_columns, facts),
        Table("recipes", "Ingredients by weight", weight_columns, weights),
    ]
    return [table for table in tables if table.rows]


# --- perplexity of a text -------------------------------------------------------------------------------


def _scores_table(answers: Sequence[PerplexityAnswer]) -> Table:
    """The perplexity of the first model, and of the others with their difference to it."""
    columns = (
        Column("Model", "model"),
        Column("Perplexity", "number"),
        Column("Against the first", "difference"),
        Column("From", "difference"),
        Column("To", "difference"),
    )
    rows: list[tuple[Cell, ...]] = []
    for answer in answers:
        first: Any = answer.baseline
        rows = rows or [(first.model, first.perplexity, None, None, None)]
        low, high = first.interval or (None, None)
        rows.append((answer.model, answer.perplexity, first.difference, low, high))
    passages = len(answers[0].texts) if answers else 0
    caption = (
        f"Perplexity on {passages} {'passage' if passages == 1 else 'passages'}, "
        "and mean NLL per token against the first"
    )
    return Table("scores", caption, columns, tuple(rows))
