"""Efforts `quick` and `thorough`: candidates are weighed on most of the sample, and tried on the rest of it.

Called by `cook`. The selector says whom to look at; the losses say who helps, and by how much at each site
(`training.coefficients`, in a process of its own). The soup of these is held against that of the selector alone and
against the base, on passages that had no part in either. `thorough` weighs more of them for longer, and tries the
mixtures that losses alone lead to (`training.by_losses`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from registry.adapters import sites_of
from registry.catalogue.rows import AdapterRow
from registry.cook.choose import EVERY, MOST, part_of, rows_of, split
from registry.cook.mix import Mixed, mix_ingredients
from registry.cook.plan import DEPTHS, cut_weighing, passes_within
from registry.cook.timed import TimedBase
from registry.cook.verify import check_verifiable, nll_of, verification_of
from registry.errors import Incompatible, Internal, InvalidSample
from registry.names import parse_ref
from registry.progress import Progress
from registry.registry import Caller, Registry
from registry.select import Chosen
from registry.selectors.ranking import Why, listed_of
from registry.soup import concat, recompress
from registry.soup.auto import apart
from registry.soup.compat import SoupPart
from registry.spec import (
    BaseShape,
    ConcatMixing,
    CookRequest,
    LeftOut,
    NoiseControl,
    RecompressMixing,
    Search,
    StoredAdapter,
    Trial,
    Verification,
    Way,
    WeighedCandidate,
    Weighing,
    WeighingRequest,
    canonical_decimal,
    canonical_weights,
)
from registry.uncertainty import paired_difference

BLOCK = 256
"""Ranked adapters that are read together, where not all are needed."""
NOT_BESIDE = "Cannot be put side by side with the best-ranked that can be at all."
Weigh = Callable[[str, WeighingRequest], Weighing]
"""(id of the base model, request) -> what was found: runs where gradients may run."""


@dataclass(frozen=True)
class Tried:
    """A soup, and how it did on the passages that were held out: NLL in nats and tokens of each, (passages,)."""

    mixed: Mixed
    verification: Verification
    nll: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class Searched:
    """The best of what was tried (None where there was nothing to try), and the report on all of it."""

    best: Tried | None
    search: Search


def search(
    registry: Registry, caller: Caller, base: TimedBase, request: CookRequest, chosen: Chosen,
    selected: Sequence[SoupPart], texts: Sequence[str], *, weigh: Weigh, progress: Progress,
) -> Searched:  # fmt: skip
    """Weigh the candidates of a ranking and those asked for, and try what comes of it on held-out passages.

    `selected` is what the selector alone would mix, if anything. Raises InvalidSample for a sample of so few passages
    that none can be held out, InvalidParameter for a base or adapters without likelihoods, NotFound or Retired for an
    adapter that was asked for, and Incompatible for one that cannot be put side by side with the others.
    """
    assert request.effort is not None
    choosing, trying = split(len(texts))
    if not trying:
        raise InvalidSample(f"Of {len(texts)} passages too few can be held out: send {EVERY} or more.", param="sample")
    candidates, (left_out, more_left_out) = _candidates(registry, caller, request, chosen)
    parts = [part for _, part in candidates]
    if wrong := concat.check(parts, ConcatMixing()) if request.also else []:
        raise Incompatible("What 'also' names cannot be put side by side: " + " ".join(wrong), param="also")
    check_verifiable(base, [*selected, *parts], effort=request.effort)
    held = [texts[number] for number in trying]
    asked = request_of(request, candidates, [texts[number] for number in choosing]) if candidates else None
    if asked is not None and request.budget is not None:
        asked = cut_weighing(asked, passes_within(request.budget, base, texts, progress=progress), len(texts))
    progress(1, 4, f"weighing {len(candidates)} adapters on {len(choosing)} passages")
    began = time.perf_counter()
    weighing = None if asked is None else weigh(base.entry.id, asked)
    seconds = time.perf_counter() - began
    ways: dict[Way, tuple[Sequence[SoupPart], CookRequest]] = {}
    if weighing is not None:
        assert asked is not None
        ways = side_by_side(weighing, parts, request, base.shape, asked)
    if selected:
        ways["selected"] = selected, request
    progress(2, 4, f"trying {len(ways)} soups on {len(trying)} passages that were held out")
    known = None if chosen.vectors is None else chosen.vectors.base_nll
    if known is None:
        base_nll = np.array([score.nll for score in base.score(held, None, progress=progress)])
    else:
        base_nll = known[trying]

    def tried_by(parts: Sequence[SoupPart], request: CookRequest) -> Tried:
        mixed = mix_ingredients(registry, base, tuple(parts), request=request)
        nll, tokens = nll_of(mixed, held, progress=progress)
        return Tried(mixed, verification_of(nll, base_nll, tokens, held_out=True), nll, tokens)

    tried = {way: tried_by(*how) for way, how in ways.items()}
    wide = min(tried.keys() - {"selected"}, key=lambda way: (_loss(tried[way]), way), default=None)
    narrow = None if wide is None else _narrow(*ways[wide])
    if narrow is not None:
        tried["recompressed"] = tried_by(*narrow)
    best = _best(tried, wide)
    noise = None
    if request.control and asked is not None and best is not None:
        progress(3, 4, f"weighing {len(candidates)} adapters of noise")
        drawn = asked.model_copy(update={"alone": 0, "noise": True, "unseen": tuple(held)})
        noise = _noise(weigh(base.entry.id, drawn), base_nll, best)
    return Searched(
        best=best,
        search=Search(
            effort=request.effort,
            candidates=_reported(candidates, weighing, base.shape),
            left_out=left_out,
            more_left_out=more_left_out,
            trials=tuple(
                Trial(
                    way=way, members=len(one.mixed.parts), width=one.mixed.config.width,
                    difference=one.verification.difference, standard_error=one.verification.standard_error,
                )
                for way, one in tried.items()
            ),
            decided_on=len(choosing),
            held_out=len(held),
            tokens=0 if weighing is None else weighing.screen_tokens + weighing.step_tokens,
            seconds=seconds,
            noise=noise,
        ),
    )  # fmt: skip


def request_of(
    request: CookRequest, candidates: Sequence[tuple[AdapterRow, SoupPart]], texts: Sequence[str]
) -> WeighingRequest:
    """What is asked of weighing, as far as the effort goes."""
    depth = DEPTHS[request.effort]
    return WeighingRequest(
        texts=tuple(texts),
        candidates=tuple(StoredAdapter(config=row.config, blob=row.weights_blob) for row, _ in candidates),
        keep=request.options.max_ingredients or depth.members,
        max_width=request.max_width,
        steps=depth.steps,
        alone=min(depth.alone, len(candidates)),
    )


def side_by_side(
    weighing: Weighing, parts: Sequence[SoupPart], request: CookRequest, shape: BaseShape, asked: WeighingRequest
) -> dict[Way, tuple[Sequence[SoupPart], CookRequest]]:
    """The exact mixtures that weighing, as it was asked, leads to."""
    ways: dict[Way, tuple[Sequence[SoupPart], CookRequest]] = {}
    exact = request.model_copy(update={"mixing": ConcatMixing()})
    if weighed := _weighed(weighing, parts, shape):
        ways["weighed"] = weighed, exact
    found = weighing.by_losses
    if found is None:
        return ways
    weights = {at: weight for at, weight in zip(found.scored, found.em, strict=True) if weight > 0}
    first = asked.most_that_fit(sorted(weights, key=lambda at: -weights[at]))
    weights = {at: weights[at] for at in first}
    if weights:
        scale = canonical_decimal(sum(weights.values()))
        mixing = ConcatMixing(scale=scale)
        ways["em"] = _at(parts, weights), request.model_copy(update={"mixing": mixing})
    if found.greedy:
        ways["greedy"] = _at(parts, dict.fromkeys(found.greedy, 1.0)), exact
    return ways


def _at(parts: Sequence[SoupPart], weights: Mapping[int, float]) -> list[SoupPart]:
    """The parts of these numbers, at these weights over their sum."""
    shares = canonical_weights(list(weights.values()))
    return [replace(parts[at], weight=share) for at, share in zip(weights, shares, strict=True) if share != "0"]


def _narrow(parts: Sequence[SoupPart], request: CookRequest) -> tuple[Sequence[SoupPart], CookRequest] | None:
    """The same as narrow as one of them, None where it is one or cannot be brought so far."""
    assert isinstance(request.mixing, ConcatMixing)
    mixing = RecompressMixing(scale=request.mixing.scale)
    if len(parts) < 2 or recompress.too_wide(parts, mixing, request.max_width):
        return None
    return parts, request.model_copy(update={"mixing": mixing})


def _noise(weighing: Weighing, base_nll: np.ndarray, best: Tried) -> NoiseControl:
    """What weighing made of noise, beside the base and the best soup, on the same passages."""
    assert weighing.unseen is not None
    noise = np.array(weighing.unseen.nll)
    if weighing.unseen.tokens != tuple(best.tokens.tolist()):
        raise Internal("noise and the soup were scored on different tokens")
    gained, ahead = (
        paired_difference(noise, base_nll, best.tokens), paired_difference(best.nll, noise, best.tokens)
    )  # fmt: skip
    return NoiseControl(
        difference=gained.difference, standard_error=gained.standard_error,
        ahead=ahead.difference, ahead_standard_error=ahead.standard_error,
    )  # fmt: skip


Candidates = list[tuple[AdapterRow, SoupPart]]


def _candidates(
    registry: Registry, caller: Caller, request: CookRequest, chosen: Chosen
) -> tuple[Candidates, tuple[tuple[LeftOut, ...], dict[str, int]]]:
    """The best-ranked adapters that can be put side by side with the first that can be at all; and why others not.

    Those that the request names come too, whatever their rank. A ranking is gone through block by block, until there
    are enough.
    """
    also = {row.digest: (row, part_of(row, "1", registry.blobs)) for row in _named(registry, caller, request)}
    most = MOST - len(also)
    found: Candidates = []
    out: dict[str, str] = {}
    seen = 0
    for block in _fitting(registry, chosen, [part for _, part in also.values()]):
        seen += len(block)
        out |= {row.digest: why for row, _, why in block if why}
        found += [(row, part) for row, part, why in block if not why and row.digest not in also]
        if len(found) > most:
            break
    better = f"{most} better-ranked ones are weighed."
    whys = {digest: Why(why, NOT_BESIDE) for digest, why in out.items()}
    whys |= {row.digest: Why(better, better) for row, _ in found[most:]}
    members = [one.member for one in chosen.ranking.ranked]
    left = [(one, whys[one.digest]) for one in members[:seen] if one.digest in whys and one.digest not in also]
    left += [(one, Why(better, better)) for one in members[seen:] if one.digest not in also]
    return [*found[:most], *also.values()], listed_of(left)


def _fitting(
    registry: Registry, chosen: Chosen, named: Sequence[SoupPart]
) -> Iterator[list[tuple[AdapterRow, SoupPart, str]]]:
    """The ranked adapters block by block, each with why it cannot be put beside the first that can be at all.

    That is the best-ranked, or where none of the ranked can be the first of those that are `named`.
    """
    digests = [one.member.digest for one in chosen.ranking.ranked]
    pending: Candidates = []
    best: SoupPart | None = None
    for first in range(0, len(digests), BLOCK):
        rows = rows_of(registry, chosen, digests[first : first + BLOCK])
        pending += [(row, part_of(row, "1", registry.blobs)) for row in rows.values()]
        best = best or next((part for _, part in pending if part.config.joinable), None)
        if best is not None:
            yield _beside(best, pending)
            pending = []
    if pending:
        yield _beside(next((part for part in named if part.config.joinable), None), pending)


def _beside(best: SoupPart | None, pending: Candidates) -> list[tuple[AdapterRow, SoupPart, str]]:
    """These with why they cannot be put side by side with the best, or where there is none at all."""
    if best is None:
        why = {part.digest: " ".join(concat.check([part], ConcatMixing())) for _, part in pending}
    else:
        why = apart(best, [part for _, part in pending], ConcatMixing(), ranked=True)
    return [(row, part, why.get(part.digest, "")) for row, part in pending]


def _named(registry: Registry, caller: Caller, request: CookRequest) -> list[AdapterRow]:
    """The adapters of `also`; raises NotFound, Retired or InvalidName."""
    with registry.database.read() as catalogue:
        return [catalogue.adapters.resolve(caller.namespaces, parse_ref(ref)) for ref in request.also]


def _weighed(weighing: Weighing, parts: Sequence[SoupPart], shape: BaseShape) -> list[SoupPart]:
    """The kept candidates with their coefficients: the mean as the weight, and beside it a factor for each site."""
    found = []
    for number, by_site in _own_sites(weighing, parts, shape).items():
        weight = canonical_decimal(fmean(by_site.values()))
        if weight != "0":
            layers = {site: canonical_decimal(value / float(weight)) for site, value in by_site.items()}
            found.append(replace(parts[number], weight=weight, layers=layers))
    return found


def _own_sites(weighing: Weighing, parts: Sequence[SoupPart], shape: BaseShape) -> dict[int, dict[str, float]]:
    """The coefficients of kept candidates at the sites they have: a LoRA need not know every module another knows."""
    found = {}
    for number, by_site in zip(weighing.kept, weighing.coefficients, strict=True):
        known = sites_of(parts[number].config, shape)
        found[number] = {site: value for site, value in by_site.items() if site in known}
    return found


def _loss(one: Tried) -> float:
    return one.verification.soup_nll


def _best(tried: Mapping[Way, Tried], wide: Way | None) -> Tried | None:
    """The one with the lowest loss; of the best wide soup the narrow form, unless it is worse by a standard error."""
    left = dict(tried)
    if wide is not None and "recompressed" in left:
        worse = paired_difference(left["recompressed"].nll, left[wide].nll, left[wide].tokens)
        del left[wide if worse.difference <= worse.standard_error else "recompressed"]
    return left[min(left, key=lambda way: (_loss(left[way]), way == "selected"))] if left else None


def _reported(
    candidates: Sequence[tuple[AdapterRow, SoupPart]], weighing: Weighing | None, shape: BaseShape
) -> tuple[WeighedCandidate, ...]:
    """Every candidate with its screen, best first, and its mean coefficient where it has one."""
    if weighing is None:
        return ()
    own = _own_sites(weighing, [part for _, part in candidates], shape)
    losses = weighing.by_losses
    alone = {} if losses is None else dict(zip(losses.scored, losses.differences, strict=True))
    means = {number: fmean(by_site.values()) for number, by_site in own.items()}
    found = [
        WeighedCandidate(
            ref=row.ref, digest=row.digest, domain=row.domain, score=screened.score,
            standard_error=screened.standard_error, coefficient=means.get(number), alone=alone.get(number),
        )
        for number, ((row, _), screened) in enumerate(zip(candidates, weighing.screened, strict=True))
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.score, one.digest)))
