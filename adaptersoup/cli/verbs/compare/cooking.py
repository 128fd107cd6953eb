"""Cooks with every strategy for one sample and scores what came of it. What was cooked is temporary.

Every cook is under a name of its own, so that no soup of somebody else is ever taken for one that was made here. What
was made is retired when the comparison ends, however it ends: it is no longer found or served, and the server removes
it as it removes unnamed soups that were retired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
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
LOOKS = 2
"""For a soup of a job that was given up, a second apart."""


@dataclass
class Kitchen:
    """Cooks, and remembers what it made, so that it can go again."""

    client: SoupClient
    progress: Progress = silent
    """Told while samples of the pool are waited for."""
    made: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)
    """Names of what jobs that were given up may have made, or make yet."""

    def cook(self, request: CookRequest) -> Json | SoupError:
        """What the service answers, or why it refuses; a job that the command does not wait for is cancelled."""
        name = temporary_name()
        try:
            begun = self._begin(request.model_copy(update={"name": name}), name)
            if begun["object"] != "job":
                return self._noted(begun)
            answer: Json | None = None
            try:
                answer = self._noted(self.client.result_of(begun))
                return answer
            finally:
                if answer is None:
                    self._give_up(begun, name)
        except SoupError as error:
            return error

    def _begin(self, request: CookRequest, name: str) -> Json:
        """The job that cooks. Who ends the command before its answer still awaits it: without its id none is cancelled.

        A pool of which no sample is embedded yet is no longer waited for then.
        """
        over = threading.Event()

        def tell(done: int, total: int, message: str) -> None:
            if over.is_set():
                raise Cancelled("The command was ended.")
            self.progress(done, total, message)

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.client.begin_cook, request, progress=tell)
            try:
                return asked.result()
            except KeyboardInterrupt:
                over.set()
                with suppress(SoupError):
                    self._give_up(asked.result(), name)
                raise

    def _noted(self, answer: Json) -> Json:
        if answer.get("created"):
            self.made.append(str(answer["model"]))
        return answer

    def _give_up(self, begun: Json, name: str) -> None:
        """Cancel a job; one that was quicker, or is past its last look at that, makes a soup all the same."""
        if begun["object"] != "job":
            self._noted(begun)
            return
        with suppress(SoupError):
            if self.client.cancel_job(str(begun["id"]))["state"] == "failed":
                return
        self.uncertain.append(name)

    def clear(self) -> None:
        """Retire what was made; tells of what cannot be."""
        for ref in self.made:
            try:
                self.client.delete_adapter(ref)
            except SoupError as error:
                talk(f"{ref}, which was made for the comparison, is still there: {explain(error)}")
        if self.made:
            talk(f"Soups that were made for the comparison are retired (--keep leaves them): {', '.join(self.made)}.")
        for name in self.uncertain:
            self._retire_if_made(name)
        self.made.clear()
        self.uncertain.clear()

    def _retire_if_made(self, name: str) -> None:
        """Retire what a job that was given up made, if it did: looked for again a moment later, when it has stopped."""
        try:
            for look in range(LOOKS):
                if look:
                    self.client.pause(1.0)
                for row in list(self.client.adapters(name=name)):
                    self.client.delete_adapter(str(row["ref"]))
                    return
        except SoupError as error:
            talk(f"{name}, which may have been made for the comparison, may still be there: {explain(error)}")


@contextmanager
def kitchen(client: SoupClient, *, keep: bool) -> Iterator[Kitchen]:
    """A kitchen whose soups go when it is left, unless they are kept."""
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
            same = str(answer.get("digest") or model)
            if same not in scores:
                scores[same] = cooking.client.perplexity(model, draw.test, baseline=base)
            rows.append(_row(strategy.name, answer, scores[same]))
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
