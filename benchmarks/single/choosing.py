"""Searches the best triple as the paper does: all of them, on validation text. Called by the experiment.

Nothing here sees a passage of `test`: `choose` reads only validation text. All triples are ranked on a few passages,
the first of each ranking are scored on many, and the best of these is chosen. Single adapters are few, so all of them
are scored on the many passages: in the domain, and on the same held-out text as triples. Held-out domains have equal
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from benchmarks.single.scoring import Ingredient, Model, Scorer, soup
from benchmarks.single.setting import Choosing, Texts

SIZE = 3
Told = Callable[[int, int, str], object]


@dataclass(frozen=True)
class Ranked:
    """A model with its mean NLL on validation text, over domains."""

    model: Model
    nll: float


@dataclass(frozen=True)
class Chosen:
    """The choices on validation text: the best single adapter and the best triple, in the domain and held out."""

    best_single: Ingredient
    best_single_outside: Ingredient
    best_inside: Model
    best_outside: Model
    finalists: tuple[Model, ...]
    """All triples that were scored on the longer text, for the oracle row."""
    triples: int


def triples(ingredients: Sequence[Ingredient]) -> list[Model]:
    """Every combination of three."""
    return [soup(some) for some in combinations(ingredients, SIZE)]


def choose(scorer: Scorer, ingredients: Sequence[Ingredient], valid: Choosing, *, finalists: int, told: Told) -> Chosen:
    """The choices for a grid of adapters, on validation text."""
    candidates = triples(ingredients)
    inside = ranking(scorer, candidates, [valid.in_some], told)[:finalists]
    outside = ranking(scorer, candidates, valid.out_some, told)[:finalists]
    singles = [soup([one]) for one in ingredients]
    single_in, single_out = (ranking(scorer, singles, texts, told)[0] for texts in ([valid.in_all], valid.out_all))
    best_in = ranking(scorer, [one.model for one in inside], [valid.in_all], told)
    best_out = ranking(scorer, [one.model for one in outside], valid.out_all, told)
    return Chosen(
        best_single=single_in.model.ingredients[0],
        best_single_outside=single_out.model.ingredients[0],
        best_inside=best_in[0].model,
        best_outside=best_out[0].model,
        finalists=tuple(dict.fromkeys(one.model for one in (*best_in, *best_out))),
        triples=len(candidates),
    )


def ranking(scorer: Scorer, models: Sequence[Model], texts: Sequence[Texts], told: Told) -> list[Ranked]:
    """The models, best first; ties go to the one that was named first."""
    columns = [scorer.scores(models, some, told) for some in texts]
    means = [fmean(column[number].mean_nll for column in columns) for number in range(len(models))]
    ranked = [Ranked(model, nll) for model, nll in zip(models, means, strict=True)]
    return sorted(ranked, key=lambda one: one.nll)
