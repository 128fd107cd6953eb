"""`soup ppl`: how well a model reads texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.output import fields, progress_bar
from service.cli.plot_flag import PlotOption, save_plot
from service.cli.remote import SAMPLE_FORMS, ModelArgument, Remote, verb
from service.client.samples import read_texts

if TYPE_CHECKING:
    from plots.style import Plot


@verb
def ppl(
    remote: Remote,
    model: ModelArgument,
    texts: Annotated[Path, typer.Option(help=SAMPLE_FORMS)],
    baseline: Annotated[str | None, typer.Option(help="A model to compare with, such as base/x.")] = None,
    plot: PlotOption = None,
) -> None:
    """Perplexity of texts under a model.

    \b
    Examples:
      soup ppl team/law --texts contracts.jsonl
      soup ppl team/soup --texts contracts.jsonl --baseline base/small
    """
    with progress_bar("scoring"):
        answer = remote.client.perplexity(model, read_texts(texts), baseline=baseline)
    against = answer.get("baseline") or {}
    remote.answer(answer, fields([
        ("perplexity", answer["perplexity"]),
        ("mean NLL per token", f"{answer['mean_nll']:.4f} (standard error {answer['standard_error']:.4f})"),
        ("bits per byte", f"{answer['bits_per_byte']:.4f}"),
        ("tokens", f"{answer['tokens']} in {len(answer['texts'])} texts"),
        ("baseline", baseline),
        ("its perplexity", against.get("perplexity")),
        ("difference", f"{against['difference']:+.4f} (paired standard error {against['standard_error']:.4f})"
         if against else None),
    ]))  # fmt: skip
    save_plot(plot, lambda: _drawn(answer))


def _drawn(answer: dict[str, Any]) -> Plot:
    from plots.results import perplexity_plot
    from service.http.schemas.perplexity import PerplexityAnswer
    from service.http.schemas.reading import body_of

    score = body_of(PerplexityAnswer, answer)
    return perplexity_plot(score.model, score, against=None if score.baseline is None else score.baseline.model)
