"""Strategies of a cook: each proposes candidates for a job, and knows what that takes.

`STRATEGIES` has them by effort; `quick` and `thorough` differ in how far they search. The conformance class in the
tests runs over every entry. None of them scores a candidate or stores one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

from registry.cook.answer import Outcome
from registry.cook.budget import START_SECONDS, Depth, weighing_passes
from registry.cook.candidate import Proposal
from registry.cook.job import CookJob
from registry.cook.strategies import selected, tune
from registry.cook.weighing import propose_by_weighing
from registry.spec import CookRequest, Effort, Price, Spent


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    `propose(job)` returns candidates, or the stored outcome of an equal request. `passes(passages, adapters)` estimates
    the passes of the base model over a sample that it takes; None for a strategy that is never offered as a higher
    effort. With `needs_ingredients` the cook abstains without a proposal if the selector abstained.
    """

    propose: Callable[[CookJob], Proposal | Outcome]
    passes: Callable[[int, int], float] | None = None
    needs_ingredients: bool = True


QUICK = Depth(members=5, steps=12, most_texts=4, turns=2, alone=0, trials=4)
"""Five adapters at most, weighed for a few steps."""
THOROUGH = Depth(members=32, steps=30, most_texts=8, turns=4, alone=8, trials=6)
"""More adapters, weighed for longer, and mixtures by the losses of each by itself."""


def _weighing(depth: Depth) -> Strategy:
    """The strategy that proposes weighed soups and the selector's own."""
    return Strategy(partial(propose_by_weighing, depth=depth), partial(weighing_passes, depth), needs_ingredients=False)


STRATEGIES: dict[Effort, Strategy] = {
    "instant": Strategy(selected.propose),
    "quick": _weighing(QUICK),
    "thorough": _weighing(THOROUGH),
    "tune": Strategy(tune.propose, tune.passes),
}
"""The strategies by effort.

A new one: its effort in `Effort` and the sets beside it in registry/spec/search.py, with a `Way` for soups made as none
are so far; a file here, or a depth; its row above. One that compares candidates is in `HOLDS_OUT` and returns a
`Search`. Also a hint on the page (`service/http/pages/cook.py`), the help of `--effort`,
docs/explanation/selection.md and `make openapi`.
"""


def strategy_of(request: CookRequest) -> Strategy:
    """The strategy of a request's effort; `instant` for a request by recipe or selector that names none."""
    return STRATEGIES[request.effort or "instant"]


def dearer_efforts(
    request: CookRequest, spent: Spent, passages: int, *, adapters: int, tuning: bool
) -> tuple[Price, ...]:
    """The higher efforts for the same sample, each with its price.

    For a recipe that is only `tune`; `tuning` is True if the namespace allows it. Empty if no pass was timed, or if the
    request needs no verification.
    """
    if spent.forward_seconds is None or not request.verify:
        return ()
    efforts: tuple[Effort, ...] = get_args(Effort)
    prices = []
    for effort in efforts[efforts.index(request.effort or "instant") + 1 :]:
        strategy = STRATEGIES[effort]
        if strategy.passes is not None and (tuning if effort == "tune" else request.recipe is None):
            passes = strategy.passes(passages, adapters)
            prices.append(Price(effort=effort, passes=passes, seconds=START_SECONDS + passes * spent.forward_seconds))
    return tuple(prices)
