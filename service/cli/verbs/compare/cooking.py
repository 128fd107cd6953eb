"""Cooks with every strategy for one sample and scores what came of it. What was cooked is temporary.

A soup that a comparison made is retired when the comparison ends, however it ends: it is no longer found or served, and
the server removes it as it removes other unnamed soups that were retired. What was there before stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from registry.errors import SoupError
from registry.spec import CookRequest, PoolRequest
from service.cli.failures import explain
from service.cli.output import talk
from service.cli.verbs.compare.domains import Draw
from service.cli.verbs.compare.strategies import Strategy
from service.client import SoupClient

Json = dict[str, Any]


@dataclass
class Kitchen:
    """Cooks, and remembers which soups are new, so that they can go again."""

    client: SoupClient
    made: list[str] = field(default_factory=list)

    def cook(self, request: CookRequest) -> Json | SoupError:
        """What the service answers, or why it refuses; a job that the command does not wait for is cancelled."""
        try:
            begun = self.client.cook(request, wait=False)
            if begun["object"] != "job":
                return self._noted(begun)
            try:
                return self._noted(self.client.result_of(begun))
            except KeyboardInterrupt:
                self._give_up(str(begun["id"]))
                raise
        except SoupError as error:
            return error

    def _noted(self, answer: Json) -> Json:
        if answer.get("created") and answer["model"] not in self.made:
            self.made.append(str(answer["model"]))
        return answer

    def _give_up(self, job_id: str) -> None:
        """Cancel a job; one that was quicker has made a soup, which goes too."""
        with suppress(SoupError):
            job = self.client.cancel_job(job_id)
            if isinstance(job.get("result"), dict):
                self._noted(job["result"])

    def clear(self) -> None:
        """Retire what was made; tells of what cannot be."""
        for ref in self.made:
            try:
                self.client.delete_adapter(ref)
            except SoupError as error:
                talk(f"{ref}, which was made for the comparison, is still there: {explain(error)}")
        if self.made:
            talk(f"Soups that were made for the comparison are retired (--keep leaves them): {', '.join(self.made)}.")
        self.made.clear()


@contextmanager
def kitchen(client: SoupClient, *, keep: bool) -> Iterator[Kitchen]:
    """A kitchen whose new soups go when it is left, unless they are kept."""
    found = Kitchen(client)
    try:
        yield found
    finally:
        if not keep:
            found.clear()


def compared(
    cooking: Kitchen, draw: Draw, pool: PoolRequest, strategies: Sequence[Strategy], tell: Callable[[int, str], object]
) -> tuple[Json, list[SoupError]]:
    """Cook and score every strategy for one sample: a comparison, and the errors of rows that failed.

    A model that several strategies arrive at is scored once. `tell` is told of each step and what it is. Raises the
    first error where nothing was cooked at all.
    """
    sample = cooking.client.sample(draw.sample)
    cooked: list[Json | SoupError] = []
    for number, strategy in enumerate(strategies):
        tell(number, f"{draw.called}: cooking: {strategy.name}")
        cooked.append(cooking.cook(strategy.request(sample, pool)))
    base = _base_of(cooking.client, cooked, pool)
    tell(len(strategies), f"{draw.called}: scoring the base")
    scores = {base: cooking.client.perplexity(base, draw.test)}
    rows: list[Json] = [_row("base", {"model": base, "abstained": False}, scores[base])]
    failed: list[SoupError] = []
    for number, (strategy, answer) in enumerate(zip(strategies, cooked, strict=True), start=len(strategies) + 1):
        tell(number, f"{draw.called}: scoring: {strategy.name}")
        try:
            if isinstance(answer, SoupError):
                raise answer
            model = str(answer["model"])
            if model not in scores:
                scores[model] = cooking.client.perplexity(model, draw.test, baseline=base)
            rows.append(_row(strategy.name, answer, scores[model]))
        except SoupError as error:
            failed.append(error)
            rows.append({"strategy": strategy.name, "error": {"code": error.code, "message": error.message}})
    counted = {"tokens": scores[base]["tokens"], "passages": len(draw.test)}
    found = {"object": "comparison", "domain": draw.domain, "draw": draw.number, "base": base, **counted, "rows": rows}
    return found, failed


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
