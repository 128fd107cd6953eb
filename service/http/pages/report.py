"""The report of a cook: why this soup, or why none, as tables and plots of its evidence.

Made from a stored soup's evidence or from the result of a cook job. Both have no names from namespaces that the key
does not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Literal

from pydantic import Field

from plots.charts import CategoryAxis, Interval, Panel, heat_map, panels
from plots.results import base_differences, perplexity_changes
from plots.style import LIGHT, Plot, Theme
from registry.spec import (
    WEIGHING,
    Evidence,
    Ingredient,
    LeftOut,
    MixReport,
    Recipe,
    RecipeIngredient,
    Spent,
    WeighedCandidate,
)
from registry.spec.score import relative_change
from service.http.pages.downloads import Cell, Column, Drawings, Table
from service.http.schemas.soups import HigherEffort, Soup
from service.http.schemas.wire import Wire

MAX_CELLS = 400
"""Cells of the largest heat map of weights by layer; the table has any number."""


class CookReport(Wire):
    """The result of a cook and its evidence."""

    object: Literal["soup_report"] = "soup_report"
    model: str
    abstained: bool
    reason: str
    cooked_at: datetime | None
    recipe: Recipe | None
    mixing: MixReport | None
    evidence: Evidence
    spent: Spent | None = None
    """The time and passes of the cook; null for a stored soup, which does not record them."""
    more_effort: tuple[HigherEffort, ...] = Field(default=(), serialization_alias="beyond")
    """The price of each effort beyond that of the cook."""
    names: dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Ref and domain, by digest, of the adapters that the key sees."""

    @property
    def perplexity_reduction(self) -> float | None:
        """The share of the base's perplexity that the soup saves; negative if its perplexity is higher."""
        check = self.evidence.verification
        return None if check is None else -relative_change(check.difference)

    @property
    def reduction_interval(self) -> tuple[float, float] | None:
        """The 90 % interval of `perplexity_reduction`, the smaller end first."""
        check = self.evidence.verification
        if check is None or check.interval is None:
            return None
        return -relative_change(check.interval[1]), -relative_change(check.interval[0])


def report_of_soup(soup: Soup, cooked_at: datetime | None) -> CookReport:
    """The report of a cook job's result."""
    evidence = Evidence(
        selector=soup.selector,
        fitted_at=soup.fitted_at,
        not_yet_included=tuple(soup.not_yet_included),
        sample=soup.sample,
        selection=soup.selection,
        verification=soup.verification,
        search=soup.search,
    )
    return CookReport(
        model=soup.model,
        abstained=soup.abstained,
        reason=soup.reason,
        cooked_at=cooked_at,
        recipe=soup.recipe,
        mixing=soup.report,
        evidence=evidence,
        spent=soup.spent,
        more_effort=soup.beyond,
        names=names_by_digest(evidence),
    )


def names_by_digest(evidence: Evidence) -> dict[str, tuple[str, str]]:
    """The ref and domain of every adapter in the evidence, by digest."""
    adapters: list[Ingredient | LeftOut | WeighedCandidate] = []
    if evidence.selection is not None:
        adapters += [*evidence.selection.selected, *evidence.selection.left_out]
    if evidence.search is not None:
        adapters += [*evidence.search.candidates, *evidence.search.left_out]
    return {adapter.digest: (adapter.ref, adapter.domain) for adapter in adapters}


# --- tables -------------------------------------------------------------------------------------------


def report_tables(report: CookReport) -> list[Table]:
    """The tables of a report that have rows."""
    tables = (
        _weights_table(report),
        _layers_table(report),
        _differences_table(report),
        _candidates_table(report),
        _excluded_table(report),
        _efforts_table(report),
    )
    return [table for table in tables if table is not None and table.rows]


def _weights_table(report: CookReport) -> Table | None:
    """The ingredients of the recipe, heaviest first."""
    if report.recipe is None:
        return None
    selection = report.evidence.selection
    selected = {} if selection is None else {adapter.digest: adapter for adapter in selection.selected}
    rows: list[tuple[Cell, ...]] = []
    for item in _heaviest_first(report.recipe):
        name, domain = report.names.get(item.digest, (item.digest, ""))
        adapter = selected.get(item.digest)
        score, stability = (None, None) if adapter is None else (adapter.score, adapter.stability)
        rows.append((name, domain, float(item.weight), score, stability))
    columns = (
        Column("Ingredient", "model"),
        Column("Domain"),
        Column("Weight", "weight"),
        Column("Score", "number"),
        Column("Chosen again", "share"),
    )
    by_site = report.recipe.ingredients[0].layers is not None
    caption = "Ingredients by weight" + (", the mean over the sites" if by_site else "")
    return Table("weights", caption, columns, tuple(rows))


def _heaviest_first(recipe: Recipe) -> list[RecipeIngredient]:
    return sorted(recipe.ingredients, key=lambda item: (-float(item.weight), item.digest))


def _layers_table(report: CookReport) -> Table | None:
    """The weight of each ingredient at each site, in the order of layers: its weight times its factor there."""
    ingredients = () if report.recipe is None else _heaviest_first(report.recipe)
    if not ingredients or ingredients[0].layers is None:
        return None
    sites = sorted({site for item in ingredients for site in item.layers or ()}, key=_layer_order)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (site, *(float(item.weight) * float((item.layers or {}).get(site, "0")) for item in ingredients))
        for site in sites
    )
    names = [report.names.get(item.digest, (item.digest, ""))[0] for item in ingredients]
    columns = (Column("Site"), *(Column(name, "number") for name in names))
    return Table("layers", "Weight of each ingredient at each site", columns, rows)


def _layer_order(site: str) -> list[tuple[int, str]]:
    """A sort key by which `layers.2.ffn` comes before `layers.10.ffn`."""
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in re.split(r"(\d+)", site)]


def measured_differences(report: CookReport) -> list[Interval]:
    """The measured differences of mean NLL against the base."""
    return base_differences(report.evidence.search, report.evidence.verification, abstained=report.abstained)


def _differences_table(report: CookReport) -> Table:
    columns = (
        Column("Candidate"),
        Column("Mean NLL per token", "difference"),
        Column("From", "difference"),
        Column("To", "difference"),
        Column("Perplexity", "change"),
    )
    rows = tuple(
        (row.label, row.value, row.low, row.high, relative_change(row.value)) for row in measured_differences(report)
    )
    return Table("differences", "Differences from the base model, with 90 % intervals", columns, rows)


def _candidates_table(report: CookReport) -> Table | None:
    """The candidates of the search."""
    if report.evidence.search is None:
        return None
    columns = (
        Column("Adapter", "model"),
        Column("Domain"),
        Column("First-order gain", "difference"),
        Column("Standard error", "number"),
        Column("Mean coefficient", "number"),
        Column("Alone", "difference"),
    )
    rows = tuple(
        (
            candidate.ref,
            candidate.domain,
            candidate.score,
            candidate.standard_error,
            candidate.coefficient,
            candidate.alone,
        )
        for candidate in report.evidence.search.candidates
    )
    return Table(
        "candidates",
        "Adapters that were weighed on the sample; the weighed soup has those with a coefficient",
        columns,
        rows,
    )


def _excluded_table(report: CookReport) -> Table:
    """The adapters that are neither ingredients nor candidates, and why."""
    selection, search = report.evidence.selection, report.evidence.search
    included = set() if report.recipe is None else {item.digest for item in report.recipe.ingredients}
    included |= set() if search is None else {candidate.digest for candidate in search.candidates}
    excluded: dict[str, LeftOut] = {}
    for stage in (selection, search):
        if stage is not None:
            excluded |= {adapter.digest: adapter for adapter in stage.left_out if adapter.digest not in included}
    last_stage = search if search is not None and search.effort in WEIGHING else selection  # `tune` weighs nothing
    more = {} if last_stage is None else last_stage.more_left_out
    rows: list[tuple[Cell, ...]] = [
        (adapter.ref, adapter.domain, adapter.score, adapter.reason) for adapter in excluded.values()
    ]
    rows += [(f"{count} more", "", None, reason) for reason, count in more.items()]
    columns = (Column("Adapter", "model"), Column("Domain"), Column("Score", "number"), Column("Reason"))
    return Table("left-out", "Adapters of the pool that were left out", columns, tuple(rows))


def _efforts_table(report: CookReport) -> Table:
    columns = (
        Column("Effort"),
        Column("Passes over the sample", "number"),
        Column("Seconds, estimated", "number"),
        Column("Gain in past cooks, nats per token", "number"),
        Column("Past cooks", "number"),
    )
    rows = tuple((price.effort, price.passes, price.seconds, price.gain, price.cooks) for price in report.more_effort)
    return Table("efforts", "Cost of a higher effort for the same sample", columns, rows)


# --- plots --------------------------------------------------------------------------------------------


def report_drawings(report: CookReport, theme: Theme) -> Drawings:
    """The plots that have rows: `gains` against the base with their intervals, `layers` with the weights by site."""
    drawings: dict[str, Callable[[], Plot]] = {}
    changes = perplexity_changes(report.evidence.search, report.evidence.verification, abstained=report.abstained)
    if changes:
        drawings["gains"] = partial(panels, "", [], [Panel("", changes)], theme=theme)
    table = _layers_table(report)
    if table is not None and len(table.rows) * len(table.columns) <= MAX_CELLS:
        weights = {
            (str(row[0]), column.name): float(row[number] or 0)
            for row in table.rows
            for number, column in enumerate(table.columns[1:], 1)
        }
        sites = CategoryAxis("", [str(row[0]) for row in table.rows])
        ingredients = CategoryAxis("", [column.name for column in table.columns[1:]])
        drawings["layers"] = partial(heat_map, "", weights, rows=sites, columns=ingredients, number=".2f", theme=theme)
    return drawings


def report_context(report: CookReport) -> dict[str, Any]:
    """The values of the template `report.html` beside the report."""
    tables = {table.name: table for table in report_tables(report)}
    return {"tables": tables, "plots": list(report_drawings(report, LIGHT))}
