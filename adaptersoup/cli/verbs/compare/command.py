"""The verb `soup compare`.

Strategies are compared on held-out text only: on the sample itself the choice has already been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptersoup.cli.failures import Failures, explain
from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.output import as_json, data, progress_bar, talk, write
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.cli.remote import SAMPLE_FORMS, Remote, verb
from adaptersoup.cli.selection_flags import POOL, SELECTION, pool_of
from adaptersoup.cli.verbs.compare.cooking import compared, kitchen
from adaptersoup.cli.verbs.compare.domains import Draw, draws_of
from adaptersoup.cli.verbs.compare.shown import csv_text, markdown, strategies_plot_of, summary, table
from adaptersoup.cli.verbs.compare.strategies import STRATEGIES, strategies_of
from registry.errors import SoupError


@dataclass(frozen=True)
class What:
    """What is compared, on which text."""

    sample: Annotated[Path | None, typer.Option(help=f"Of one domain: {SAMPLE_FORMS}")] = None
    test: Annotated[Path | None, typer.Option(help="Other text of the same domain, to score on.")] = None
    draws: Annotated[int, typer.Option(min=1, max=100, help="Samples drawn of each domain.")] = 1
    size: Annotated[int | None, typer.Option(min=1, help="Passages of each sample; by default all.")] = None
    strategy: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this strategy; may be repeated. They are: {'; '.join(s.name for s in STRATEGIES)}."),
    ] = None


@dataclass(frozen=True)
class Shown:
    """How the comparison is shown."""

    csv: Annotated[bool, typer.Option("--csv", help="A line for each strategy of each sample, as CSV.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Strategies by domains, as a Markdown table.")] = False
    plot: PlotOption = None
    keep: Annotated[bool, typer.Option("--keep", help="Leave the soups that the comparison makes.")] = False


@verb
def compare(
    remote: Remote,
    domains: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of domains, each with sample.* or valid.*, and test.*", metavar="FOLDER..."),
    ] = None,
    *,
    what: What,
    shown: Shown,
    flags: Annotated[ParsedFlags, SELECTION.only(*POOL)],
) -> None:
    """Cook with every strategy and compare on other text.

    Each soup is scored beside the base, with the paired standard error of the difference. Strategies called after an
    effort answer with the base model where verifying on the sample shows no gain. The soups that a comparison makes
    are retired when it ends, also by Ctrl-C; those that were there before stay.

    \b
    Examples:
      soup compare --sample contracts.jsonl --test other-contracts.jsonl
      soup compare --sample a.txt --test b.txt --json > comparison.json
      soup compare novel/* --draws 3 --size 60 --plot comparison.svg
      soup compare novel/* --strategy "effort quick" --strategy "soup, cosine" --markdown
    """
    if sum((shown.csv, shown.markdown, remote.json)) > 1:
        raise typer.BadParameter("Give one of --csv, --markdown and --json.")
    draws = draws_of(domains or (), what.sample, what.test, number=what.draws, size=what.size)
    found, failed = _compare(remote, draws, what, flags, keep=shown.keep)
    _tell(remote, found, shown)
    save_plot(shown.plot, lambda: strategies_plot_of(found))
    for row, error in failed:
        talk(f"{row}: {explain(error)}")
    ended = Failures()
    ended += [error for _, error in failed]
    ended.end()


def _compare(
    remote: Remote, draws: Sequence[Draw], what: What, flags: ParsedFlags, *, keep: bool
) -> tuple[list[dict[str, Any]], list[tuple[str, SoupError]]]:
    """The comparison of each draw, and the errors of rows with what they are about."""
    pool, strategies = pool_of(flags), strategies_of(what.strategy or ())
    found: list[dict[str, Any]] = []
    failed: list[tuple[str, SoupError]] = []
    steps = 2 * len(strategies) + 1
    with kitchen(remote.client, keep=keep) as cooking, progress_bar("comparing") as report:
        cooking.progress = report
        for number, draw in enumerate(draws):

            def tell(step: int, said: str, before: int = number * steps) -> None:
                report(before + step, steps * len(draws), said)

            try:
                one, errors = compared(cooking, draw, pool, strategies, tell)
            except SoupError as error:  # of this one nothing could be cooked
                failed.append((draw.called, error))
                continue
            found.append(one)
            wrong = [row["strategy"] for row in one["rows"] if row.get("error")]
            called = [name if len(draws) == 1 else f"{draw.called}, {name}" for name in wrong]
            failed += zip(called, errors, strict=True)
    if not found:
        raise failed[0][1]
    return found, failed


def _tell(remote: Remote, found: Sequence[dict[str, Any]], shown: Shown) -> None:
    if remote.json:
        as_json(found[0] if len(found) == 1 else {"object": "list", "data": list(found)})
    elif shown.csv:
        write(csv_text(found))
    elif shown.markdown:
        data(markdown(found))
    elif len(found) == 1:
        data(table(found[0]["rows"]))
        tokens, passages = found[0]["tokens"], found[0]["passages"]
        talk(f"{tokens} tokens in {passages} texts; difference is mean NLL per token against the base.")
    else:
        data(summary(found))
        talk("Difference of mean NLL per token against the base, the mean over domains; and that as perplexity.")
