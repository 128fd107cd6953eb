"""Cooks temporary soups with every strategy for a sample, and scores them.

Every cook has a temporary name, so that no soup of another user is retired. The soups are retired when the comparison
ends, also by an error; the server then removes them like unnamed soups.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from adaptersoup.cli.failures import explain
from adaptersoup.cli.output import talk
from adaptersoup.cli.verbs.compare.domains import Draw
from adaptersoup.cli.verbs.compare.strategies import Strategy
from adaptersoup.client import SoupClient
from registry.errors import Cancelled, SoupError
from registry.names import temporary_name
from registry.progress import Progress, silent
from registry.spec import CookRequest, PoolRequest

Json = dict[str, Any]
CHECKS = 2
"""Times that a cancelled job's soup is looked for, a second apart."""


@dataclass
class Steps:
    """The progress of a comparison, counted in steps."""

    report: Progress
    done: int
    total: int

    def begin(self, message: str) -> None:
        """Report the step that begins."""
        self.report(self.done, self.total, message)
        self.done += 1


@dataclass
class TemporarySoups:
    """Cooks soups, and retires them with `retire`."""

    client: SoupClient
    progress: Progress = silent
    """Called while no sample of the pool is embedded yet."""
    refs: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)
    """Names of soups that cancelled jobs may have made, or may still make."""
    _is_interrupted: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def cook(self, request: CookRequest) -> Json | SoupError:
        """The server's answer to a cook, or its error; cancels the job if the wait is interrupted."""
        name = temporary_name()
        try:
            answer = self._begin(request.model_copy(update={"name": name}), name)
            if answer["object"] != "job":
                return self._recorded(answer)
            result: Json | None = None
            try:
                result = self._recorded(self.client.result_of(answer))
                return result
            finally:
                if result is None:
                    self._cancel(answer, name)
        except SoupError as error:
            return error

    def _begin(self, request: CookRequest, name: str) -> Json:
        """Start a cook: its job, or the soup. An interrupt waits for the answer, to cancel the job by its id.

        It no longer waits for a pool of which no sample is embedded yet.
        """
        self._is_interrupted.clear()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self.client.begin_cook, request, progress=self._report)
            try:
                return future.result()
            except KeyboardInterrupt:
                self._is_interrupted.set()
                with suppress(SoupError):
                    self._cancel(future.result(), name)
                raise

    def _report(self, done: int, total: int, message: str) -> None:
        if self._is_interrupted.is_set():
            raise Cancelled("The command was interrupted.")
        self.progress(done, total, message)

    def _recorded(self, answer: Json) -> Json:
        if answer.get("created"):
            self.refs.append(str(answer["model"]))
        return answer

    def _cancel(self, answer: Json, name: str) -> None:
        """Cancel the job of a cook; one that has ended, or no longer checks for cancellation, may still make a soup."""
        if answer["object"] != "job":
            self._recorded(answer)
            return
        with suppress(SoupError):
            if self.client.cancel_job(str(answer["id"]))["state"] == "failed":
                return
        self.uncertain.append(name)

    def retire(self) -> None:
        """Retire the soups; prints which of them could not be retired."""
        for ref in self.refs:
            try:
                self.client.delete_adapter(ref)
            except SoupError as error:
                talk(f"{ref}, which was made for the comparison, is still there: {explain(error)}")
        if self.refs:
            talk(f"Soups that were made for the comparison are retired (--keep leaves them): {', '.join(self.refs)}.")
        for name in self.uncertain:
            self._retire_uncertain(name)
        self.refs.clear()
        self.uncertain.clear()

    def _retire_uncertain(self, name: str) -> None:
        """Retire the soup of a cancelled job if there is one; checks once more a second later, when it has stopped."""
        try:
            for check in range(CHECKS):
                if check:
                    self.client.pause(1.0)
                for row in list(self.client.adapters(name=name)):
                    self.client.delete_adapter(str(row["ref"]))
                    return
        except SoupError as error:
            talk(f"{name}, which may have been made for the comparison, may still be there: {explain(error)}")


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
) -> tuple[Json, list[SoupError]]:
    """Cook and score every strategy for one sample: a comparison, and the errors of rows that failed.

    A model that several strategies arrive at is scored once. Takes 2 * len(strategies) + 1 steps. Raises the first
    error if no strategy cooked anything.
    """
    sample = soups.client.sample(draw.sample)
    cooked: list[Json | SoupError] = []
    for strategy in strategies:
        steps.begin(f"{draw.title}: cooking: {strategy.name}")
        cooked.append(soups.cook(strategy.request(sample, pool)))
    base = _base_of(soups.client, cooked, pool)
    steps.begin(f"{draw.title}: scoring the base")
    scores = {base: soups.client.perplexity(base, draw.test)}
    rows: list[Json] = [_row("base", {"model": base, "abstained": False}, scores[base])]
    errors: list[SoupError] = []
    for strategy, answer in zip(strategies, cooked, strict=True):
        steps.begin(f"{draw.title}: scoring: {strategy.name}")
        try:
            if isinstance(answer, SoupError):
                raise answer
            model = str(answer["model"])
            digest = str(answer.get("digest") or model)
            if digest not in scores:
                scores[digest] = soups.client.perplexity(model, draw.test, baseline=base)
            rows.append(_row(strategy.name, answer, scores[digest]))
        except SoupError as error:
            errors.append(error)
            rows.append({"strategy": strategy.name, "error": {"code": error.code, "message": error.message}})
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
