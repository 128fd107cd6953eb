"""`soup select`: which adapters fit a sample, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.spec import Selection
from service.cli.flags import Given
from service.cli.output import progress_bar
from service.cli.plot_flag import PlotOption, save_plot
from service.cli.remote import Remote, SampleOption, verb
from service.cli.selection_flags import SELECTION, options_of, pool_of, selector_of
from service.cli.selection_text import selection_table, talk_about
from service.client.samples import read_texts

if TYPE_CHECKING:
    from plots.style import Plot


ListAllOption = Annotated[
    bool, typer.Option("--list-all", help="List every adapter that was left out, not only the best-scored.")
]


@verb
def select(
    remote: Remote,
    sample: SampleOption,
    given: Annotated[Given, SELECTION],
    list_all: ListAllOption = False,
    plot: PlotOption = None,
) -> None:
    """Say which adapters fit a sample, and why; nothing is cooked. --plot draws the ranking.

    \b
    Examples:
      soup select --sample contracts.jsonl
      soup select --sample contracts.txt --selector cosine --encoder sbert
      cat contracts.txt | soup select --sample - --paper
    """
    selector, options, pool = selector_of(given), options_of(given), pool_of(given)
    source = remote.client.sample(read_texts(sample))
    with progress_bar("selecting") as report:
        answer = remote.client.select(
            source, selector=selector, options=options, pool=pool, list_all=list_all, progress=report
        )
    remote.answer(answer, selection_table(answer["selection"]))
    if not remote.json:
        talk_about(answer)
    save_plot(plot, lambda: _drawn(answer))


def _drawn(answer: dict[str, Any]) -> Plot:
    from plots.results import selection_plot
    from service.http.schemas.reading import body_of

    return selection_plot(body_of(Selection, answer["selection"]))
