"""Cooks temporary soups with every strategy for a sample, and scores them.

Every cook has a temporary name, so that no soup of another user is retired. The soups are retired when the comparison
ends, also by an error; the server then removes them like unnamed soups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from adaptersoup.cli.failures import explain
from adaptersoup.cli.output import talk
from adaptersoup.cli.verbs.compare.domains import Draw
from adaptersoup.cli.verbs.compare.strategies import Strategy
from adaptersoup.client import SoupClient
from registry.errors import SoupError
from registry.names import temporary_name
from registry.progress import Steps
from registry.spec import CookRequest, PoolRequest

Json = dict[str, Any]


@dataclass
class TemporarySoups:
    """Cooks soups, and retires them with `retire`."""

    client: SoupClient
    names: list[str] = field(default_factory=list)
    """Names that cooks were given. A soup has one only if the comparison has made it."""

    def cook(self, request: CookRequest, steps: Steps) -> Json | SoupError:
        """The server's answer to a cook, or its error; cancels the job if the wait is interrupted.

        `steps` gets a note while no sample of the pool is embedded yet.
        """
        self.names.append(temporary_name())
        try:
            answer = self.client.begin_cook(
                request.model_copy(update={"name": self.names[-1]}),
                progress=lambda _done, _total, message: steps.note(message),
            )
            return self._result_of(answer) if answer["object"] == "job" else answer
        except SoupError as error:
            return error

    def _result_of(self, job: Json) -> Json:
        try:
            return self.client.result_of(job)
        except BaseException:
            with suppress(SoupError):
                self.client.cancel_job(str(job["id"]))
            raise

    def retire(self) -> None:
        """Retire the soups; prints which of them could not be retired."""
        retired: list[str] = []
        for name in self.names:
            try:
                for row in list(self.client.adapters(name=name)):
                    self.client.delete_adapter(row["ref"])
                    retired.append(row["ref"])
            except SoupError as error:
                talk(f"{name}, if it was made for the comparison, is still there: {explain(error)}")
        if retired:
            talk(f"Soups that were made for the comparison are retired (--keep leaves them): {', '.join(retired)}.")


@contextmanager
def temporary_soups(client: SoupClient, *, keep: bool) -> Iterator[TemporarySoups]:
    """Soups that are retired when `with` ends, unless `keep`."""
    soups = TemporarySoups(client)
    try:
        yield soups
    finally:
        if not keep:
            soups.retire()


def compare_draw(
    soups: TemporarySoups, draw: Draw, pool: PoolRequest, strategies: Sequence[Strategy], steps: Steps
) -> tuple[Json, list[tuple[str, SoupError]]]:
    """Cook and score every strategy for one sample: a comparison, and the errors of strategies that failed.

    A model that several strategies arrive at is scored once. Takes 2 * len(strategies) + 1 steps. Raises the first
    error if no strategy cooked anything.
    """
    sample = soups.client.sample(draw.sample)
    cooked: list[Json | SoupError] = []
    for strategy in strategies:
        steps.note(f"{draw.title}: cooking: {strategy.name}")
        cooked.append(soups.cook(strategy.request(sample, pool), steps))
        steps.step(f"{draw.title}: cooked: {strategy.name}")
    base = _base_of(soups.client, cooked, pool)
    steps.note(f"{draw.title}: scoring the base")
    scores = {base: soups.client.perplexity(base, draw.test)}
    steps.step(f"{draw.title}: scored the base")
    rows: list[Json] = [_row("base", {"model": base, "abstained": False}, scores[base])]
    errors: list[tuple[str, SoupError]] = []
    for strategy, answer in zip(strategies, cooked, strict=True):
        steps.note(f"{draw.title}: scoring: {strategy.name}")
        try:
            if isinstance(answer, SoupError):
                raise answer
            model = str(answer["model"])
            digest = str(answer.get("digest") or model)
            if digest not in scores:
                scores[digest] = soups.client.perplexity(model, draw.test, baseline=base)
            rows.append(_row(strategy.name, answer, scores[digest]))
        except SoupError as error:
            errors.append((strategy.name, error))
            rows.append({"strategy": strategy.name, "error": {"code": error.code, "message": error.message}})
        steps.step(f"{draw.title}: scored: {strategy.name}")
    comparison = {
        "object": "comparison",
        "domain": draw.domain,
        "draw": draw.number,
        "base": base,
        "tokens": scores[base]["tokens"],
        "passages": len(draw.test),
        "rows": rows,
    }
    return comparison, errors


def _base_of(client: SoupClient, cooked: Sequence[dict[str, Any] | SoupError], pool: PoolRequest) -> str:
    """The base model of the comparison, `base/<id>`; raises the first error if no strategy cooked anything."""
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
    baseline = score.get("baseline") or {}
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
        "difference": baseline.get("difference", 0.0),
        "standard_error": baseline.get("standard_error", 0.0),
        "verification": answer.get("verification"),
    }


def _ingredients_text(cooked: dict[str, Any]) -> str:
    """The chosen adapters of an answer as `domain weight`, in order of rank."""
    selected: Sequence[dict[str, Any]] = (cooked.get("selection") or {}).get("selected") or ()
    return ", ".join(f"{row['domain']} {float(row['weight']):.2f}" for row in selected)
