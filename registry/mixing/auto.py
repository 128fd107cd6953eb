"""Choosing the mixing method of a soup: `auto` becomes `average`, `concat` or `merge` before a recipe is written.

Called by `cook.choose`, which keeps what can be mixed with the best-ranked adapter, and by `cook.mix`, which settles
on the method or refuses with all reasons and what could be done instead.
"""

from __future__ import annotations

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


_OF_ONE_START = ("average", "ties", "dare", "slerp")
"""Methods that mix values in the places where they are, and so ask for one initialisation."""


@dataclass(frozen=True)
class Choice:
    """The mixing of a recipe, and why it is this one; `why` is empty where it was asked for by name."""

    mixing: Mixing
    why: str = ""


def candidates(parts: Sequence[SoupIngredient], request: MixingRequest) -> list[Mixing]:
    """The mixings that a request allows for these parts, the preferred first."""
    if not isinstance(request, AutoMixing):
        return [request]
    if any(part.config.merged is not None for part in parts):
        return [MergeMixing()]  # nothing else can be done with a bank
    joined = ConcatMixing(scale=request.scale)
    if any(part.layers is not None for part in parts):
        return [joined]
    several = len(parts) > 1 or parts[0].config.joinable  # a union alone is the average of itself
    if several and all(part.config.average_on_request for part in parts):
        return [joined]  # the average of their factors has cross terms: on request only
    return [AverageMixing(scale=request.scale, assume_same_init=request.assume_same_init), joined]


def settle(parts: Sequence[SoupIngredient], request: MixingRequest, *, max_width: int) -> Choice:
    """The first mixing that nothing stands against; raises Incompatible with everything that does."""
    against: dict[str, list[str]] = {}
    for mixing in candidates(parts, request):
        method = MIXINGS[mixing.method]
        reasons = method.check(parts, mixing) or method.too_wide(parts, mixing, max_width)
        if isinstance(mixing, MergeMixing) and isinstance(request, AutoMixing) and request.scale != "1":
            asked = f"A merge has no scale, and {request.scale} is asked for"
            reasons.append(f"{asked}: merge the bank, then scale what comes of it.")
        if not reasons:
            return Choice(mixing, _why(parts, mixing, against) if isinstance(request, AutoMixing) else "")
        against[mixing.method] = reasons
    problems = list(dict.fromkeys(reason for reasons in against.values() for reason in reasons))
    raise Incompatible(
        f"These adapters cannot be {_REFUSED.get(request.method, 'mixed')}. {' '.join(problems)} "
        f"{_instead(parts, against)}",
        param="recipe",
        problems=problems,
    )


def _why(parts: Sequence[SoupIngredient], mixing: Mixing, against: Mapping[str, Sequence[str]]) -> str:
    if isinstance(mixing, MergeMixing):
        bank = parts[0].config
        assert isinstance(bank, BankConfig)  # checked by the method; only banks have experts to count
        return f"the mean of its {bank.experts} experts"
    if len(parts) == 1:
        return ""
    if isinstance(mixing, AverageMixing):
        if mixing.assume_same_init and init_reasons(parts):
            return "structure and scale agree, and the request vouches for one initialisation"
        return "structure, scale and initialisation agree"
    if not against:
        return "LoRAs are mixed exactly, whatever they started from"
    return "exact, and averaging was not possible: " + " ".join(against["average"]).rstrip(".")


def _instead(parts: Sequence[SoupIngredient], against: Mapping[str, Sequence[str]]) -> str:
    """What could be done about it, of what would really help."""
    if any(part.config.merged is not None for part in parts):
        return "Merge each bank by itself, by mixing 'merge' of a recipe of it alone, and mix what comes of them."
    if "merge" in against:
        return "Name the bank alone, or mix adapters by 'auto'."
    ways = []
    if not MIXINGS["concat"].check(parts, ConcatMixing()):
        exact = "mix by 'concat', which asks for one method and structure only"
        ways.append("leave out ingredients, or raise max_width" if "concat" in against else exact)
    if "average" not in against and not MIXINGS["average"].check(parts, AverageMixing()):
        ways.append("mix by 'average', which takes the factors of a LoRA apart")
    if "average" in against and not MIXINGS["average"].check(parts, AverageMixing()):
        ways.append("leave 'scale' at 1")
    if any(list(against.get(method, ())) == init_reasons(parts) != [] for method in _OF_ONE_START):
        ways.append("set mixing.assume_same_init if you know that they started from the same tensors")
    if not ways:
        several = len({part.config.method for part in parts}) > 1
        ways.append(f"mix only adapters of one base model and one {'method' if several else 'structure'}")
    told = ", or ".join(ways)
    return told[0].upper() + told[1:] + "."


# --- what can be mixed with the best -------------------------------------------------------------


def best_unranked(parts: Sequence[SoupIngredient], request: MixingRequest) -> SoupIngredient:
    """Where nothing is ranked: one of the largest group that averages, else of the largest that concatenates."""
    alike = Counter(_alike(part, request) for part in parts)
    kinds = Counter(_joinable(part) for part in parts)
    return max(parts, key=lambda part: (alike[_alike(part, request)], kinds[_joinable(part)]))


def _joinable(part: SoupIngredient) -> object:
    """Equal for adapters that can be concatenated, as far as configurations say."""
    return concat.kind_of(part.config) if part.config.joinable else part.digest


def _alike(part: SoupIngredient, request: MixingRequest) -> object:
    """Equal for adapters that can be averaged; what cannot be averaged with anything is alone."""
    on_request = isinstance(request, AutoMixing) and part.config.average_on_request
    if isinstance(request, ConcatMixing | RecompressMixing | AlignMixing | MergeMixing) or on_request:
        return part.digest
    if average_reasons([part, part], request.scale):  # a fusion
        return part.digest
    if request.assume_same_init:
        return part.config.dense()
    return part.digest if part.provenance.init_hash is None else (part.config.dense(), part.provenance.init_hash)


def apart(
    best: SoupIngredient, others: Sequence[SoupIngredient], request: MixingRequest, *, ranked: bool
) -> dict[str, str]:
    """Why each other adapter (by digest) cannot be in a soup with the best; those that can are not in it.

    With `auto` whoever can be averaged or concatenated stays. Those that can only be averaged (Houlsby adapters
    train LayerNorms of their own) leave no place for those that can only be concatenated, and where nothing is
    ranked a wide soup of few does not replace the average of many.
    """
    best = replace(best, load=cache(best.load))  # it may be compared with each of the others
    reasons: dict[str, dict[str, list[str]]] = {}
    for mixing in candidates([best, best], request):  # of several
        check = MIXINGS[mixing.method].check
        reasons[mixing.method] = {one.digest: check([best, one], mixing) for one in others if one.digest != best.digest}
    taken = reasons
    if len(reasons) > 1:
        averaged, joined = ({one for one, why in found.items() if not why} for found in reasons.values())
        if not averaged <= joined or (averaged and not ranked) or not best.config.joinable:
            taken = {"average": reasons["average"]}
        else:
            taken = {"concat": reasons["concat"]}
    return {
        digest: " ".join(dict.fromkeys(one for found in reasons.values() for one in found[digest]))
        for found in taken.values()
        for digest, why in found.items()
        if why
    }


def within_width(parts: Sequence[SoupIngredient], request: MixingRequest, *, max_width: int) -> tuple[int, str]:
    """How many of the first parts make a soup within `max_width`, and what the next would have made of it."""
    count, reason = len(parts), ""
    while count > 1:
        mixing = _cheapest(parts[:count], request)
        found = MIXINGS[mixing.method].too_wide(parts[:count], mixing, max_width)
        if not found:
            break
        count, reason = count - 1, found[0]
    return count, reason


def _cheapest(parts: Sequence[SoupIngredient], request: MixingRequest) -> Mixing:
    """What parts that can be mixed are mixed by: the average where it is possible."""
    first, *more = candidates(parts, request)
    return first if not more or not MIXINGS[first.method].check(parts, first) else more[0]
