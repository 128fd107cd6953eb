"""The verb `soup compare`. It compares strategies on text other than the sample that they have selected for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from adaptersoup.cli.failures import Failures, explain
from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.output import as_json, data, progress_bar, talk, write
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.cli.remote import SAMPLE_FORMS, Remote, verb
from adaptersoup.cli.selection_flags import POOL, SELECTION, pool_of
from adaptersoup.cli.verbs.compare.cooking import compare_draw, temporary_soups
from adaptersoup.cli.verbs.compare.domains import Draw, draws_of
from adaptersoup.cli.verbs.compare.report import csv_text, markdown, strategies_plot_of, summary, table
from adaptersoup.cli.verbs.compare.strategies import STRATEGIES, strategies_of
from registry.errors import SoupError
from registry.progress import Steps


@dataclass(frozen=True)
class ComparisonFlags:
    """The options for the strategies and texts of a comparison."""

    sample: Annotated[Path | None, typer.Option(help=f"Sample of one domain: {SAMPLE_FORMS}")] = None
    test: Annotated[Path | None, typer.Option(help="Other text of that domain, to score on.")] = None
    draws: Annotated[int, typer.Option(min=1, max=100, help="Samples to draw from each domain.")] = 1
    size: Annotated[int | None, typer.Option(min=1, help="Passages per sample; by default all.")] = None
    strategy: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this strategy; repeatable. Strategies: {'; '.join(s.name for s in STRATEGIES)}."),
    ] = None


@dataclass(frozen=True)
class OutputFlags:
    """The options for the output of a comparison."""

    SECTION: ClassVar[str] = "Output"
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a line for each strategy and sample.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table of strategies and domains.")] = (
        False
    )
    plot: PlotOption = None
    keep: Annotated[bool, typer.Option("--keep", help="Keep the soups of the comparison.")] = False


@verb
def compare(
    remote: Remote,
    domains: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of domains, each with sample.* or valid.*, and test.*", metavar="FOLDER..."),
    ] = None,
    *,
    comparison_flags: ComparisonFlags,
    output: OutputFlags,
    flags: Annotated[ParsedFlags, SELECTION.only(*POOL)],
) -> None:
    """Cook with every strategy, and compare the results on a test set.

    Scores each soup against the base model, with the paired standard error of the difference. A strategy with the name
    of an effort uses the base model if the sample shows no gain. At the end, also after Ctrl-C, the new soups are
    retired; soups that existed before stay.

    \b
    Examples:
      soup compare --sample contracts.jsonl --test other-contracts.jsonl
      soup compare --sample a.txt --test b.txt --json > comparison.json
      soup compare novel/* --draws 3 --size 60 --plot comparison.svg
      soup compare novel/* --strategy "effort quick" --strategy "soup, cosine" --markdown
    """
    if sum((output.csv, output.markdown, remote.json)) > 1:
        raise typer.BadParameter("Give one of --csv, --markdown and --json.")
    draws = draws_of(
        domains or (),
        comparison_flags.sample,
        comparison_flags.test,
        number=comparison_flags.draws,
        size=comparison_flags.size,
    )
    comparisons, errors = _compare(remote, draws, comparison_flags, flags, keep=output.keep)
    _print(remote, comparisons, output)
    save_plot(output.plot, lambda: strategies_plot_of(comparisons))
    for row, error in errors:
        talk(f"{row}: {explain(error)}")
    Failures(error for _, error in errors).end()


def _compare(
    remote: Remote, draws: Sequence[Draw], comparison_flags: ComparisonFlags, flags: ParsedFlags, *, keep: bool
) -> tuple[list[dict[str, Any]], list[tuple[str, SoupError]]]:
    """The comparison of each draw, and the errors with the names of their rows.

    Raises the first error if no draw could be compared.
    """
    pool, strategies = pool_of(flags), strategies_of(comparison_flags.strategy or ())
    comparisons: list[dict[str, Any]] = []
    errors: list[tuple[str, SoupError]] = []
    with temporary_soups(remote.client, keep=keep) as soups, progress_bar("comparing") as report:
        steps = Steps(report, total=len(draws) * (2 * len(strategies) + 1))
        for draw in draws:
            try:
                comparison, failed = compare_draw(soups, draw, pool, strategies, steps)
            except SoupError as error:  # nothing could be cooked for this draw
                errors.append((draw.title, error))
                continue
            comparisons.append(comparison)
            errors += [(name if len(draws) == 1 else f"{draw.title}, {name}", error) for name, error in failed]
    if not comparisons:
        raise errors[0][1]
    return comparisons, errors


def _print(remote: Remote, comparisons: Sequence[dict[str, Any]], output: OutputFlags) -> None:
    if remote.json:
        as_json(comparisons[0] if len(comparisons) == 1 else {"object": "list", "data": list(comparisons)})
    elif output.csv:
        write(csv_text(comparisons))
    elif output.markdown:
        data(markdown(comparisons))
    elif len(comparisons) == 1:
        data(table(comparisons[0]["rows"]))
        tokens, passages = comparisons[0]["tokens"], comparisons[0]["passages"]
        talk(f"{tokens} tokens in {passages} texts; difference is mean NLL per token against the base.")
    else:
        data(summary(comparisons))
        talk("Difference of mean NLL per token against the base, the mean over domains; and that as perplexity.")
