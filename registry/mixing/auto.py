"""Choose the mixing method of a soup: `auto` becomes `average`, `concat` or `merge` before a recipe is written.

Called by `cook.ingredients`, which drops adapters that cannot be mixed with the best-ranked one. Also called by
`cook.mix`, which chooses the method, or refuses with all reasons and alternatives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from registry.errors import Incompatible
from registry.mixing import MIXINGS, concat
from registry.mixing.compat import SoupIngredient, average_reasons, init_reasons
from registry.spec import (
    AlignMixing,
    AutoMixing,
    AverageMixing,
    BankConfig,
    ConcatMixing,
    MergeMixing,
    Mixing,
    MixingRequest,
    RecompressMixing,
)

_REFUSED = {
    "average": "averaged",
    "concat": "concatenated",
    "recompress": "recompressed",
    "align": "aligned",
    "merge": "merged",
}


@dataclass(frozen=True)
class Choice:
    """The mixing of a recipe and the reason for it; the reason is empty where the request named the method."""

    mixing: Mixing
    reason: str = ""


def candidates(ingredients: Sequence[SoupIngredient], request: MixingRequest) -> list[Mixing]:
    """The mixings that a request allows for these ingredients, the preferred first."""
    if not isinstance(request, AutoMixing):
        return [request]
    if any(ingredient.config.merged is not None for ingredient in ingredients):
        return [MergeMixing()]  # nothing else can be done with a bank
    concatenated = ConcatMixing(scale=request.scale)
    if any(ingredient.layers is not None for ingredient in ingredients):
        return [concatenated]
    joinable = len(ingredients) > 1 or ingredients[0].config.joinable  # a union alone is the average of itself
    if joinable and all(ingredient.config.average_on_request for ingredient in ingredients):
        return [concatenated]  # the average of their factors has cross terms: on request only
    return [AverageMixing(scale=request.scale, assume_same_init=request.assume_same_init), concatenated]


def choose_mixing(ingredients: Sequence[SoupIngredient], request: MixingRequest, *, max_width: int) -> Choice:
    """The first candidate with no reason against it; raises Incompatible with the reasons against all of them."""
    against: dict[str, list[str]] = {}
    for mixing in candidates(ingredients, request):
        method = MIXINGS[mixing.method]
        reasons = method.check(ingredients, mixing) or method.too_wide(ingredients, mixing, max_width)
        if isinstance(mixing, MergeMixing) and isinstance(request, AutoMixing) and request.scale != "1":
            problem = f"A merge has no scale, and {request.scale} is asked for"
            reasons.append(f"{problem}: merge the bank, then scale what comes of it.")
        if not reasons:
            is_auto = isinstance(request, AutoMixing)
            return Choice(mixing, _choice_reason(ingredients, mixing, against) if is_auto else "")
        against[mixing.method] = reasons
    problems = list(dict.fromkeys(reason for reasons in against.values() for reason in reasons))
    raise Incompatible(
        f"These adapters cannot be {_REFUSED.get(request.method, 'mixed')}. {' '.join(problems)} "
        f"{_advice(ingredients, against)}",
        param="recipe",
        problems=problems,
    )


def _choice_reason(ingredients: Sequence[SoupIngredient], mixing: Mixing, against: Mapping[str, Sequence[str]]) -> str:
    if isinstance(mixing, MergeMixing):
        bank = ingredients[0].config
        assert isinstance(bank, BankConfig)  # checked by the method; only banks have experts to count
        return f"the mean of its {bank.experts} experts"
    if len(ingredients) == 1:
        return ""
    if isinstance(mixing, AverageMixing):
        if mixing.assume_same_init and init_reasons(ingredients):
            return "structure and scale agree, and the request vouches for one initialisation"
        return "structure, scale and initialisation agree"
    if not against:
        return "LoRAs are mixed exactly, whatever they started from"
    return "exact, and averaging was not possible: " + " ".join(against["average"]).rstrip(".")


def _advice(ingredients: Sequence[SoupIngredient], against: Mapping[str, Sequence[str]]) -> str:
    """A sentence with the changes to the request that would make a soup possible."""
    if any(ingredient.config.merged is not None for ingredient in ingredients):
        return "Merge each bank by itself, by mixing 'merge' of a recipe of it alone, and mix what comes of them."
    if "merge" in against:
        return "Name the bank alone, or mix adapters by 'auto'."
    changes = []
    if not MIXINGS["concat"].check(ingredients, ConcatMixing()):
        exact = "mix by 'concat', which needs only the same method and structure"
        changes.append("leave out ingredients, or raise max_width" if "concat" in against else exact)
    if not MIXINGS["average"].check(ingredients, AverageMixing()):
        by_average = "mix by 'average', which takes the factors of a LoRA apart"
        changes.append("leave 'scale' at 1" if "average" in against else by_average)
    advised = [list(reasons) for method, reasons in against.items() if MIXINGS[method].init_advice]
    if init_reasons(ingredients) and init_reasons(ingredients) in advised:
        changes.append("set mixing.assume_same_init if you know that they started from the same tensors")
    if not changes:
        several = len({ingredient.config.method for ingredient in ingredients}) > 1
        changes.append(f"mix only adapters of one base model and one {'method' if several else 'structure'}")
    advice = ", or ".join(changes)
    return advice[0].upper() + advice[1:] + "."


# --- compatibility with the best ingredient -------------------------------------------------------


def best_unranked(ingredients: Sequence[SoupIngredient], request: MixingRequest) -> SoupIngredient:
    """The ingredient to start from where none is ranked.

    One of the largest group that can be averaged, and among equals of the largest that can be concatenated.
    """
    averaged = Counter(_average_key(ingredient, request) for ingredient in ingredients)
    joined = Counter(_join_key(ingredient) for ingredient in ingredients)
    return max(ingredients, key=lambda best: (averaged[_average_key(best, request)], joined[_join_key(best)]))


def _join_key(ingredient: SoupIngredient) -> object:
    """Equal for adapters that can be concatenated, as far as configurations say."""
    return concat.join_key(ingredient.config) if ingredient.config.joinable else ingredient.digest


def _average_key(ingredient: SoupIngredient, request: MixingRequest) -> object:
    """Equal for adapters that can be averaged; unique for one that cannot be averaged with any other."""
    on_request = isinstance(request, AutoMixing) and ingredient.config.average_on_request
    if isinstance(request, ConcatMixing | RecompressMixing | AlignMixing | MergeMixing) or on_request:
        return ingredient.digest
    if average_reasons([ingredient, ingredient], request.scale):  # a fusion
        return ingredient.digest
    if request.assume_same_init:
        return ingredient.config.dense()
    init_hash = ingredient.provenance.init_hash
    return ingredient.digest if init_hash is None else (ingredient.config.dense(), init_hash)


def exclusion_reasons(
    best: SoupIngredient, ingredients: Sequence[SoupIngredient], request: MixingRequest, *, ranked: bool
) -> dict[str, str]:
    """The reasons, by digest, why adapters cannot be in a soup with the best; those that can are not in it.

    With `auto`, adapters stay if they can be averaged or concatenated. Adapters that can only be averaged (Houlsby
    adapters with their own LayerNorms) exclude those that can only be concatenated. Without a ranking, a wide soup of a
    few adapters does not replace the average of many.
    """
    best = replace(best, load=cache(best.load))  # it may be compared with each ingredient
    reasons: dict[str, dict[str, list[str]]] = {}
    for mixing in candidates([best, best], request):
        check = MIXINGS[mixing.method].check
        reasons[mixing.method] = {
            ingredient.digest: check([best, ingredient], mixing)
            for ingredient in ingredients
            if ingredient.digest != best.digest
        }
    method = next(iter(reasons))
    if len(reasons) > 1:
        averaged = {digest for digest, against in reasons["average"].items() if not against}
        concatenated = {digest for digest, against in reasons["concat"].items() if not against}
        if best.config.joinable and averaged <= concatenated and (ranked or not averaged):
            method = "concat"
    return {
        digest: " ".join(dict.fromkeys(reason for by_digest in reasons.values() for reason in by_digest[digest]))
        for digest, against in reasons[method].items()
        if against
    }


def within_width(ingredients: Sequence[SoupIngredient], request: MixingRequest, *, max_width: int) -> tuple[int, str]:
    """The number of first ingredients that make a soup within `max_width`, and the reason against one more.

    The ingredients can be mixed with each other. More of them are never narrower, so the number is found by bisection.
    """

    def reasons(count: int) -> list[str]:
        mixing = _narrowest(ingredients[:count], request)
        return MIXINGS[mixing.method].too_wide(ingredients[:count], mixing, max_width)

    counts = range(2, len(ingredients) + 1)  # one adapter alone is never too wide
    first_too_wide = bisect_left(counts, True, key=lambda count: bool(reasons(count)))
    if first_too_wide == len(counts):
        return len(ingredients), ""
    return counts[first_too_wide] - 1, reasons(counts[first_too_wide])[0]


def _narrowest(ingredients: Sequence[SoupIngredient], request: MixingRequest) -> Mixing:
    """The mixing of ingredients that can be mixed: the average where it is possible."""
    first, *more = candidates(ingredients, request)
    return first if not more or not MIXINGS[first.method].check(ingredients, first) else more[0]
