"""`soup fit` and `select`: fit a selector over a pool, and select adapters for a sample."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.output import as_json, data, progress_bar
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.cli.remote import Remote, SampleOption, verb
from adaptersoup.cli.selection_flags import POOL, SELECTION, options_of, pool_of, selector_of
from adaptersoup.cli.selection_text import selection_table, talk_about_selection
from adaptersoup.client.samples import read_texts
from adaptersoup.tables import columns, fields, spelt, table_width
from adaptersoup.values import Selection, Selector
from registry.spec import PosteriorSpec
from service.http.schemas.reading import body_of


@verb
def fit(
    remote: Remote,
    flags: Annotated[ParsedFlags, SELECTION.only("selector", "paper", "encoder", "set", *POOL)],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the selector is fitted.")] = True,
    plot: PlotOption = None,
) -> None:
    """Fit a selector over a pool of adapters.

    Optional: a cook fits its selector on first use. Shows how well the selector tells domains apart.

    \b
    Examples:
      soup fit
      soup fit --paper
      soup fit --selector cosine --encoder base --pool-tag v2
      soup fit --selector gmm --set covariance=diag --set dimensions=16
    """
    if plot is not None and not wait:
        raise typer.BadParameter("--plot needs the fitted selector: drop --no-wait.")
    selector, pool = selector_of(flags) or PosteriorSpec(), pool_of(flags)
    with progress_bar("fitting") as report:
        fitted = remote.client.fit(selector, pool=pool, wait=wait, progress=report)
    if fitted.get("object") == "job":
        note = f"Fitting goes on as a job: `soup jobs watch {fitted['id']}`."
    else:
        note = report_text({"domains": fitted.get("domains")} | (fitted.get("report") or {}))
    remote.answer(fitted, fitted["id"], note=note)
    save_plot(plot, lambda: body_of(Selector, fitted).plot())


def report_text(report: dict[str, Any]) -> str:
    """A selector's fit report as text: a line a figure, then tables by domain or cluster, then notes."""
    tables = {name: value for name, value in report.items() if name != "component_zero" and _is_table(value)}
    figures = [(spelt(name), value) for name, value in _figures(report) if name not in tables]
    notes = [fields([("Note:", note)]) for note in report.get("warnings") or ()]
    paragraphs = [fields(figures), *(_table(name, value) for name, value in tables.items() if value), "\n".join(notes)]
    return "\n\n".join(filter(None, paragraphs))


def _figures(report: dict[str, Any]) -> list[tuple[str, Any]]:
    """The names and values of a report; for component 0 of gmm, the choice and the accuracy of each option."""
    figures = [(name, value) for name, value in report.items() if name not in ("warnings", "component_zero")]
    zero = report.get("component_zero")
    if zero:
        accuracies = [f"{option} {accuracy:.2f}" for option, accuracy in zero["held_out_accuracy"].items()]
        figures.append(("component 0", f"{zero['chosen']} (held-out accuracy: {', '.join(accuracies)})"))
    return figures


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(row, dict) for row in value))


def _table(name: str, value: Any) -> str:
    """A table of values by domain, or of rows by cluster."""
    if isinstance(value, dict):
        return columns(("domain", spelt(name)), list(value.items()), within=table_width())
    rows = [tuple(row[column] for column in value[0]) for row in value]
    return columns([spelt(column) for column in value[0]], rows, within=table_width())


ListAllOption = Annotated[
    bool, typer.Option("--list-all", help="List all adapters that were left out, not only the best-scored ones.")
]


@verb
def select(
    remote: Remote,
    sample: SampleOption,
    flags: Annotated[ParsedFlags, SELECTION],
    list_all: ListAllOption = False,
    plot: PlotOption = None,
) -> None:
    """Show which adapters fit a sample, and why.

    Does not cook. --plot draws the ranking.

    \b
    Examples:
      soup select --sample contracts.jsonl
      soup select --sample contracts.txt --selector cosine --encoder sbert
      cat contracts.txt | soup select --sample - --paper
    """
    selector, options, pool = selector_of(flags), options_of(flags), pool_of(flags)
    source = remote.client.sample(read_texts(sample))
    with progress_bar("selecting") as report:
        answer = remote.client.select(
            source, selector=selector, options=options, pool=pool, list_all=list_all, progress=report
        )
    if remote.json:
        as_json(answer)
    else:
        selected = body_of(Selection, answer)
        data(selection_table(selected.selection))
        talk_about_selection(selected.selection, selected)
    save_plot(plot, lambda: body_of(Selection, answer).plot())
