"""`soup compare`: every strategy cooks for one sample, and all are scored on other text beside the base.

Strategies are compared on held-out text only: on the sample itself the choice has already been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from registry.errors import SoupError
from registry.progress import Progress
from registry.spec import (
    CookRequest,
    CosineSpec,
    Effort,
    GmmSpec,
    PoolRequest,
    SampleSource,
    SelectOptions,
    UniformSpec,
)
from service.cli.failures import Failures, explain
from service.cli.flags import Given
from service.cli.output import columns, data_width, progress_bar, talk
from service.cli.remote import Remote, SampleOption, verb
from service.cli.selection_flags import POOL, SELECTION, pool_of
from service.client import SoupClient
from service.client.samples import read_texts


@dataclass(frozen=True)
class Strategy:
    """One way to choose; `verify` lets the service fall back to the base."""

    name: str
    selector: GmmSpec | CosineSpec | UniformSpec | None
    single: bool = False
    verify: bool = False
    effort: Effort | None = None

    def request(self, sample: SampleSource, pool: PoolRequest) -> CookRequest:
        """What this strategy asks the service for."""
        options = SelectOptions(single=self.single)
        return CookRequest(
            sample=sample, selector=self.selector, options=options, pool=pool, verify=self.verify, effort=self.effort
        )  # fmt: skip


STRATEGIES = (
    Strategy("single, cosine", CosineSpec(), single=True),
    Strategy("soup, cosine", CosineSpec()),
    Strategy("single, gmm as in the paper", GmmSpec(mode="paper"), single=True),
    Strategy("soup, gmm as in the paper", GmmSpec(mode="paper")),
    Strategy("single, gmm", GmmSpec(), single=True),
    Strategy("soup, gmm", GmmSpec()),
    Strategy("uniform soup", UniformSpec()),
    Strategy("effort instant", None, verify=True, effort="instant"),
    Strategy("effort quick", None, verify=True, effort="quick"),
    Strategy("effort thorough", None, verify=True, effort="thorough"),
    Strategy("effort tune", None, verify=True, effort="tune"),
)


@verb
def compare(
    remote: Remote,
    sample: SampleOption,
    test: Annotated[Path, typer.Option(help="Other text of the same domain, to score on.")],
    given: Annotated[Given, SELECTION.only(*POOL)],
) -> None:
    """Cook with every strategy and compare on other text.

    Each soup is scored on --test beside the base, with the paired standard error of the difference. The last row
    is what the service answers by default, which is the base model where verifying on the sample shows no gain.

    \b
    Examples:
      soup compare --sample contracts.jsonl --test other-contracts.jsonl
      soup compare --sample a.txt --test b.txt --json > comparison.json
    """
    texts = read_texts(test)
    source = remote.client.sample(read_texts(sample))
    pool = pool_of(given)
    with progress_bar("comparing") as report:
        result, failed = run(remote.client, source, texts, pool, report)
    said = f"{result['tokens']} tokens in {len(texts)} texts; difference is mean NLL per token against the base."
    remote.answer(result, table(result["rows"]), said=said)
    for row, error in zip([row for row in result["rows"] if row.get("error")], failed, strict=True):
        talk(f"{row['strategy']}: {explain(error)}")
    failed.end()


def run(
    client: SoupClient, sample: SampleSource, texts: Sequence[str], pool: PoolRequest, progress: Progress
) -> tuple[dict[str, Any], Failures]:
    """Cook and score every strategy: {"base", "tokens", "rows"}, and the errors of rows that failed.

    A model that several strategies arrive at is scored once.
    """
    cooked: list[dict[str, Any] | SoupError] = []
    steps = 2 * len(STRATEGIES) + 1
    for number, strategy in enumerate(STRATEGIES):
        progress(number, steps, f"cooking: {strategy.name}")
        cooked.append(_cook(client, strategy, sample, pool))
    base = _base_of(client, cooked, pool)
    progress(len(STRATEGIES), steps, "scoring the base")
    scores = {base: client.perplexity(base, texts)}
    rows: list[dict[str, Any]] = [_row("base", {"model": base, "abstained": False}, scores[base])]
    failed = Failures()
    for number, (strategy, answer) in enumerate(zip(STRATEGIES, cooked, strict=True), start=len(STRATEGIES) + 1):
        progress(number, steps, f"scoring: {strategy.name}")
        try:
            if isinstance(answer, SoupError):
                raise answer
            model = str(answer["model"])
            if model not in scores:
                scores[model] = client.perplexity(model, texts, baseline=base)
            rows.append(_row(strategy.name, answer, scores[model]))
        except SoupError as error:
            failed.append(error)
            rows.append({"strategy": strategy.name, "error": {"code": error.code, "message": error.message}})
    tokens = scores[base]["tokens"]
    return {"object": "comparison", "base": base, "tokens": tokens, "passages": len(texts), "rows": rows}, failed


def _cook(
    client: SoupClient, strategy: Strategy, sample: SampleSource, pool: PoolRequest
) -> dict[str, Any] | SoupError:
    try:
        return client.cook(strategy.request(sample, pool))
    except SoupError as error:
        return error


def _base_of(client: SoupClient, cooked: Sequence[dict[str, Any] | SoupError], pool: PoolRequest) -> str:
    """`base/<id>` that everything is compared with; raises the first error where nothing was cooked at all."""
    if pool.base_model is not None:
        return f"base/{pool.base_model}"
    answers = [answer for answer in cooked if isinstance(answer, dict)]
    if not answers:
        raise next(answer for answer in cooked if isinstance(answer, SoupError))
    for answer in answers:
        if str(answer["model"]).startswith("base/"):
            return str(answer["model"])
    return f"base/{client.adapter(str(answers[0]['model']))['base_model']}"


def _row(strategy: str, answer: dict[str, Any], score: dict[str, Any]) -> dict[str, Any]:
    against = score.get("baseline") or {}
    return {
        "strategy": strategy,
        "model": answer["model"],
        "abstained": answer["abstained"],
        "reason": answer.get("reason"),
        "ingredients": (answer.get("selection") or {}).get("selected") or [],
        "summary": _ingredients_text(answer),
        "mixing": ((answer.get("recipe") or {}).get("mixing") or {}).get("method"),
        "perplexity": score["perplexity"],
        "mean_nll": score["mean_nll"],
        "difference": against.get("difference", 0.0),
        "standard_error": against.get("standard_error", 0.0),
        "verification": answer.get("verification"),
    }


def _ingredients_text(cooked: dict[str, Any]) -> str:
    """The chosen adapters of an answer as `domain weight`, in order of rank."""
    selected: Sequence[dict[str, Any]] = (cooked.get("selection") or {}).get("selected") or ()
    return ", ".join(f"{row['domain']} {float(row['weight']):.2f}" for row in selected)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison as aligned text: what each strategy came to, then what each of the models is made of."""
    figures = columns(
        ("strategy", "perplexity", "difference", "model"), [_figures(row) for row in rows], within=data_width()
    )
    made = {row["model"]: _made_of(row) for row in rows if row.get("summary") and not row["abstained"]}
    if not made:
        return figures
    return figures + "\n\n" + columns(("model", "ingredients"), list(made.items()), within=data_width())


def _figures(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """A strategy, its perplexity and difference to the base, and the model it came to."""
    if row.get("error"):
        return row["strategy"], "-", "-", "failed"
    against = "" if row["strategy"] == "base" else f"{row['difference']:+.4f} ± {row['standard_error']:.4f}"
    model = "abstained: the base" if row["abstained"] else row["model"]
    return row["strategy"], f"{row['perplexity']:.2f}", against, model


def _made_of(row: dict[str, Any]) -> str:
    return str(row["summary"]) + (" (concat)" if row["mixing"] == "concat" and len(row["ingredients"]) > 1 else "")
