"""Why a soup, or why none: what the evidence of a cook says, as tables and charts that people and programs read.

Made of a stored soup's evidence, or of what a cook job gave; in both names of namespaces that the key does not see are
left out already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Literal

from pydantic import Field

from plots.charts import Interval, Panel, panels, stacked_bars
from plots.results import base_differences
from plots.style import LIGHT, Plot, Theme
from registry.spec import (
    Evidence,
    Ingredient,
    LeftOut,
    MixReport,
    Price,
    Recipe,
    Spent,
    WeighedCandidate,
)
from service.http.pages.plot_files import Drawings
from service.http.pages.tables import Cell, Column, Table
from service.http.schemas.soups import Soup
from service.http.schemas.wire import Wire

MAX_SEGMENTS = 200
"""Segments of the plot of weights by layer; the table has any number."""


class SoupReport(Wire):
    """What is known of why a model is the answer for a sample."""

    object: Literal["soup_report"] = "soup_report"
    model: str
    abstained: bool
    reason: str
    cooked_at: datetime | None
    recipe: Recipe | None
    mixing: MixReport | None
    evidence: Evidence
    spent: Spent | None = None
    """What the cook took; its job knew it, and a stored soup does not."""
    beyond: tuple[Price, ...] = ()
    names: dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Name and domain of adapters by their digest, as far as the key sees them."""

    @property
    def lower(self) -> float | None:
        """By what share perplexity is lower than the base's; negative where it is higher."""
        check = self.evidence.verification
        return None if check is None else 1 - math.exp(check.difference)


def of_job(soup: Soup, at: datetime | None) -> SoupReport:
    """The report of what a cook job gave."""
    evidence = Evidence(
        selector=soup.selector,
        fitted_at=soup.fitted_at,
        not_yet_included=tuple(soup.not_yet_included),
        sample=soup.sample,
        selection=soup.selection,
        verification=soup.verification,
        search=soup.search,
    )
    return SoupReport(
        model=soup.model,
        abstained=soup.abstained,
        reason=soup.reason,
        cooked_at=at,
        recipe=soup.recipe,
        mixing=soup.report,
        evidence=evidence,
        spent=soup.spent,
        beyond=soup.beyond,
        names=named(evidence),
    )


def named(evidence: Evidence) -> dict[str, tuple[str, str]]:
    """The name and domain of every adapter that the evidence names, by digest."""
    found: list[Ingredient | LeftOut | WeighedCandidate] = []
    if evidence.selection is not None:
        found += [*evidence.selection.selected, *evidence.selection.left_out]
    if evidence.search is not None:
        found += [*evidence.search.candidates, *evidence.search.left_out]
    return {one.digest: (one.ref, one.domain) for one in found}


# --- tables -------------------------------------------------------------------------------------------


def tables(report: SoupReport) -> list[Table]:
    """Every table of a report that has a row."""
    found = [_weights(report), _layers(report), _differences(report), _candidates(report), _left_out(report)]
    return [table for table in [*found, _prices(report)] if table is not None and table.rows]


def _name(report: SoupReport, digest: str) -> str:
    return report.names.get(digest, (digest, ""))[0]


def _weights(report: SoupReport) -> Table | None:
    """The ingredients, heaviest first."""
    if report.recipe is None:
        return None
    chosen = {one.digest: one for one in report.evidence.selection.selected} if report.evidence.selection else {}
    rows = [
        (
            _name(report, one.digest),
            report.names.get(one.digest, ("", ""))[1],
            float(one.weight),
            chosen[one.digest].score if one.digest in chosen else None,
            chosen[one.digest].stability if one.digest in chosen else None,
        )
        for one in sorted(report.recipe.ingredients, key=lambda one: (-float(one.weight), one.digest))
    ]
    columns = (
        Column("Ingredient", "model"),
        Column("Domain"),
        Column("Weight", "number"),
        Column("Score", "number"),
        Column("Chosen again", "share"),
    )
    by_site = report.recipe.ingredients[0].layers is not None
    caption = "What is in it, heaviest first" + ("; a weight is the mean over the sites" if by_site else "")
    return Table("weights", caption, columns, tuple(rows))


def _layers(report: SoupReport) -> Table | None:
    """What is added at each site: an ingredient's weight times its factor there."""
    ingredients = () if report.recipe is None else report.recipe.ingredients
    if not ingredients or ingredients[0].layers is None:
        return None
    sites = list(dict.fromkeys(site for one in ingredients for site in one.layers or ()))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (site, *(float(one.weight) * float((one.layers or {}).get(site, "0")) for one in ingredients)) for site in sites
    )
    columns = (Column("Site"), *(Column(_name(report, one.digest), "number") for one in ingredients))
    return Table("layers", "How much of each is added at each site", columns, rows)


def measured(report: SoupReport) -> list[Interval]:
    """Every difference against the base that its evidence has."""
    return base_differences(report.evidence.search, report.evidence.verification, abstained=report.abstained)


def _differences(report: SoupReport) -> Table:
    columns = (
        Column("What was tried"),
        Column("Against the base", "difference"),
        Column("From", "difference"),
        Column("To", "difference"),
    )
    rows = tuple((one.label, one.value, one.low, one.high) for one in measured(report))
    return Table("differences", "Mean NLL per token against the base, with 90 % intervals", columns, rows)


def _candidates(report: SoupReport) -> Table | None:
    """The adapters that were weighed."""
    if report.evidence.search is None:
        return None
    columns = (
        Column("Adapter", "model"),
        Column("Domain"),
        Column("Takes off at once", "difference"),
        Column("Standard error", "number"),
        Column("Mean coefficient", "number"),
        Column("By itself", "difference"),
    )
    rows = tuple(
        (one.ref, one.domain, one.score, one.standard_error, one.coefficient, one.alone)
        for one in report.evidence.search.candidates
    )
    return Table(
        "candidates",
        "Adapters that were weighed on the sample; those with a coefficient are in the weighed soup",
        columns,
        rows,
    )


def _left_out(report: SoupReport) -> Table:
    """Whoever was not weighed and is not in it; where adapters were weighed, their table has what came of those."""
    selection, search = report.evidence.selection, report.evidence.search
    taken = set() if report.recipe is None else {one.digest for one in report.recipe.ingredients}
    taken |= set() if search is None else {one.digest for one in search.candidates}
    left: dict[str, LeftOut] = {}
    more: dict[str, int] = {}
    for part in (selection, search):
        if part is not None:
            left |= {one.digest: one for one in part.left_out if one.digest not in taken}
            more |= part.more_left_out
    rows: list[tuple[Cell, ...]] = [(one.ref, one.domain, one.score, one.reason) for one in left.values()]
    rows += [(f"{count} more", "", None, why) for why, count in more.items()]
    columns = (Column("Adapter", "model"), Column("Domain"), Column("Score", "number"), Column("Why not"))
    return Table("left-out", "Adapters of the pool that were not looked at further, and why", columns, tuple(rows))


def _prices(report: SoupReport) -> Table:
    columns = (Column("Effort"), Column("Passes over the sample", "number"), Column("Seconds, about", "number"))
    rows = tuple((one.effort, one.passes, one.seconds) for one in report.beyond)
    return Table("efforts", "What spending more would take for the same sample", columns, rows)


# --- plots --------------------------------------------------------------------------------------------


def report_plots(report: SoupReport, theme: Theme) -> Drawings:
    """What draws the plots that have a row: `differences` with their intervals, `layers` with weights by site."""
    drawings: dict[str, Callable[[], Plot]] = {}
    if rows := measured(report):
        drawings["differences"] = partial(panels, "", [], [Panel("", rows)], theme=theme)
    table = _layers(report)
    if table is not None and len(table.rows) * len(table.columns) <= MAX_SEGMENTS:
        series = {
            column.name: [float(row[number] or 0) for row in table.rows]
            for number, column in enumerate(table.columns[1:], 1)
        }
        drawings["layers"] = partial(stacked_bars, [str(row[0]) for row in table.rows], series, theme=theme)
    return drawings


def report_values(report: SoupReport) -> dict[str, Any]:
    """What the template of a report needs beside it."""
    return {"tables": {table.name: table for table in tables(report)}, "plots": list(report_plots(report, LIGHT))}
