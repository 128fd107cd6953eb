"""Efforts `quick` and `thorough`: candidates are weighed on most of the sample, and tried on the rest of it.

Called by `cook`. The selector says whom to look at; the losses say who helps, and by how much at each site
(`training.coefficients`, in a process of its own). The soup of these is held against that of the selector alone and
against the base, on passages that had no part in either: a part of the sample or, where there are few, each of them in
its turn. `thorough` weighs more of them for longer, and tries the mixtures that losses alone lead to
(`training.by_losses`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from registry.context import Caller, Registry
from registry.cook.candidates import Candidates, candidates_of
from registry.cook.choose import MOST, mixable
from registry.cook.mix import Mixed, mix_ingredients
from registry.cook.plan import DEPTHS, FOLDS, Size, cut_weighing, folds_of, passes_within
from registry.cook.timed import TimedBase
from registry.cook.verify import check_verifiable, nll_of, verification_of
from registry.cook.ways import How, best_alone, narrow, reported, request_of, side_by_side
from registry.errors import Incompatible, Internal, InvalidSample
from registry.mixing import concat
from registry.mixing.compat import SoupIngredient
from registry.progress import Progress
from registry.select.select import Chosen
from registry.spec import (
    BaseShape,
    Budget,
    ConcatMixing,
    CookRequest,
    LeftOut,
    NoiseControl,
    Search,
    SingleBeside,
    Trial,
    Verification,
    Way,
    Weighing,
    WeighingRequest,
)
from registry.uncertainty import paired_difference

TOGETHER = MOST + MOST // 2
"""Adapters that are screened together for several rankings of the same passages."""
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
    selected: Sequence[SoupIngredient], texts: Sequence[str], *, weigh: Weigh, progress: Progress,
) -> Searched:  # fmt: skip
    """Weigh the candidates of a ranking and those asked for, and try what comes of it on held-out passages.

    `selected` is what the selector alone would mix, if anything; both are by the passages that are not held out. Of few
    passages they are by all of them, as the answer is: each passage then tries what is selected and weighed alike
    without it (`folds_of`).

    Raises InvalidSample for a sample of so few passages that none can be held out, InvalidParameter for a base or
    adapters without likelihoods, NotFound or Retired for an adapter that was asked for, and Incompatible for one that
    cannot be put side by side with the others.
    """
    folds, whole = folds_of(len(texts))
    if not all(folds):
        raise InvalidSample(f"Of {len(texts)} passages too few can be held out: send {FOLDS} or more.", param="sample")
    work = _Work(registry, caller, base, request, texts, weigh, progress)
    if request.budget is not None:
        work = work.within(request.budget, chosen)
    asks = [work.ask(chosen, selected, range(len(texts)))] if whole else []  # first: folds know what it found
    for fold in folds:
        rest = [number for number in range(len(texts)) if number not in fold]
        by, parts = mixable(registry, request, chosen.by(rest)) if whole else (chosen, selected)
        asks.append(work.ask(by, parts, rest))
    weighed = [work.led_by(one) for one in _screened_together(asks)]
    found = list(zip(weighed[-len(folds) :], folds, strict=True))
    held = [number for fold in folds for number in fold]
    progress(2, 4, f"trying {len(weighed[0].ways)} soups on {len(held)} passages that were held out")
    trying = _Trying(work, weighed[0], found, work.base_nll(chosen, held))
    tried, wide = trying.all()
    best = trying.best(tried, wide)
    noise = trying.noise(best) if request.control and best is not None else None
    single = None if best is None else trying.single(best)
    report = _report(
        weighed[0], weighed, tried, request, held_out=len(held), shape=base.shape, noise=noise, single=single
    )
    return Searched(best, report)


@dataclass(frozen=True)
class _Ask:
    """What is asked of weighing on some of the passages; nothing where there are no candidates."""

    candidates: Candidates
    left_out: tuple[tuple[LeftOut, ...], dict[str, int]]
    selected: Sequence[SoupIngredient]
    asked: WeighingRequest | None
    decided_on: int

    @property
    def parts(self) -> list[SoupIngredient]:
        """The candidates as they are mixed."""
        return [part for _, part in self.candidates]


@dataclass(frozen=True)
class _Led(_Ask):
    """What weighing on some of the passages leads to."""

    weighing: Weighing | None
    seconds: float
    ways: Mapping[Way, How]


def _screened_together(asks: Sequence[_Ask]) -> list[_Ask]:
    """The same, each with the candidates of all beside its own, so that one finds what the others then know.

    A ranking that has not seen a passage may have a few others among its best. Where that makes too many, or they
    cannot be put side by side, each is screened with its own.
    """
    parts = {part.digest: part for ask in asks for part in ask.parts}
    if len(asks) < 2 or len(parts) > TOGETHER or concat.check(list(parts.values()), ConcatMixing()):
        return list(asks)
    every = {
        part.digest: one for ask in asks if ask.asked for part, one in zip(ask.parts, ask.asked.candidates, strict=True)
    }
    beside = tuple(every[digest] for digest in sorted(every))
    return [
        ask if ask.asked is None else replace(ask, asked=ask.asked.model_copy(update={"beside": beside}))
        for ask in asks
    ]


@dataclass(frozen=True)
class _Work:
    """What a search is about, and what a budget leaves of each of its weighings."""

    registry: Registry
    caller: Caller
    base: TimedBase
    request: CookRequest
    texts: Sequence[str]
    weigh: Weigh
    progress: Progress
    left: Mapping[str, int] = field(default_factory=dict)

    def within(self, budget: Budget, chosen: Chosen) -> _Work:
        """The same with each weighing cut alike, so that all together fit the budget.

        Raises InvalidParameter where not even the least of them do, before anything is weighed.
        """
        candidates, _ = candidates_of(self.registry, self.caller, self.request, chosen)
        if not candidates:
            return self
        passes = passes_within(budget, self.base, self.texts, progress=self.progress)
        size = Size.of(len(self.texts), len(candidates))
        return replace(self, left=vars(cut_weighing(DEPTHS[self.request.effort], size, passes)))

    def ask(self, chosen: Chosen, selected: Sequence[SoupIngredient], numbers: Sequence[int]) -> _Ask:
        """The candidates of a ranking, to be weighed on the passages of these numbers."""
        request, base = self.request, self.base
        candidates, left_out = candidates_of(self.registry, self.caller, request, chosen)
        parts = [part for _, part in candidates]
        if wrong := concat.check(parts, ConcatMixing()) if request.also else []:
            raise Incompatible("What 'also' names cannot be put side by side: " + " ".join(wrong), param="also")
        check_verifiable(base, [*selected, *parts], effort=request.effort)
        return _Ask(
            candidates, left_out, selected, self._asked(candidates, numbers) if candidates else None, len(numbers)
        )

    def led_by(self, ask: _Ask) -> _Led:
        """Weigh what is asked for."""
        self.progress(1, 4, f"weighing {len(ask.candidates)} adapters on {ask.decided_on} passages")
        began = time.perf_counter()
        weighing = None if ask.asked is None else self.weigh(self.base.entry.id, ask.asked)
        seconds = time.perf_counter() - began
        ways: dict[Way, How] = {}
        if ask.asked is not None and weighing is not None:
            ways = side_by_side(weighing, ask.parts, self.request, self.base.shape, ask.asked)
        if ask.selected:
            ways["selected"] = ask.selected, self.request
        return _Led(**vars(ask), weighing=weighing, seconds=seconds, ways=ways)

    def _asked(self, candidates: Candidates, numbers: Sequence[int]) -> WeighingRequest:
        asked = request_of(self.request, candidates, [self.texts[number] for number in numbers])
        less = {name: min(most, getattr(asked, name)) for name, most in self.left.items()}
        return asked.model_copy(update={**less, "owner": self.caller.key_id})

    def mixed(self, how: How) -> Mixed:
        """The soup that is made so."""
        parts, request = how
        return mix_ingredients(self.registry, self.base, tuple(parts), request=request)

    def scored(self, mixed: Mixed | None, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """NLL and tokens of passages, two arrays (passages,); without a soup the base's."""
        texts = [self.texts[number] for number in numbers]
        if mixed is not None:
            return nll_of(mixed, texts, progress=self.progress)
        scores = self.base.score(texts, None, progress=self.progress)
        return np.array([score.nll for score in scores]), np.array([score.tokens for score in scores])

    def base_nll(self, chosen: Chosen, numbers: Sequence[int]) -> np.ndarray:
        """The base's NLL of passages (passages,), which the sample's embedding may have yielded."""
        known = None if chosen.vectors is None else chosen.vectors.base_nll
        return self.scored(None, numbers)[0] if known is None else known[list(numbers)]


@dataclass(frozen=True)
class _Trying:
    """Soups of the answer, each tried on passages by what was made in the same way without them."""

    work: _Work
    led: _Led
    by_fold: Sequence[tuple[_Led, Sequence[int]]]
    base_nll: np.ndarray

    def all(self) -> tuple[dict[Way, Tried], Way | None]:
        """Every way of the answer, the narrow form of the best wide one as well; and which one that is."""
        tried = {way: self._by(_way(way)) for way in self.led.ways}
        wide = min(tried.keys() - {"selected"}, key=lambda way: (_loss(tried[way]), way), default=None)
        if wide is not None and narrow(*self.led.ways[wide]) is not None:
            tried["recompressed"] = self._by(lambda led: _narrowest(led.ways.get(wide)))
        return tried, wide

    def _by(self, made: Callable[[_Led], How | None]) -> Tried:
        """The soup of the answer that is `made` so; where the passages that are left do not lead to one, the base."""
        how = made(self.led)
        assert how is not None
        mixed = self.work.mixed(how)
        scores = []
        for led, fold in self.by_fold:
            its = made(led)
            soup = mixed if led is self.led else None if its is None else self.work.mixed(its)
            scores.append(self.work.scored(soup, fold))
        nll, tokens = (np.concatenate(each) for each in zip(*scores, strict=True))
        return self._tried(mixed, nll, tokens)

    def best(self, tried: Mapping[Way, Tried], wide: Way | None) -> Tried | None:
        """The one with the lowest loss, verified as the best of so many.

        Of the best wide soup there is the narrow form, unless it is worse by a standard error.
        """
        left = dict(tried)
        if wide is not None and "recompressed" in left:
            worse = paired_difference(left["recompressed"].nll, left[wide].nll, left[wide].tokens)
            del left[wide if worse.difference <= worse.standard_error else "recompressed"]
        if not left:
            return None
        best = left[min(left, key=lambda way: (_loss(left[way]), way == "selected"))]
        return self._tried(best.mixed, best.nll, best.tokens, ways=len(left))

    def _tried(self, mixed: Mixed, nll: np.ndarray, tokens: np.ndarray, *, ways: int = 1) -> Tried:
        return Tried(mixed, verification_of(nll, self.base_nll, tokens, held_out=True, ways=ways), nll, tokens)

    def single(self, best: Tried) -> SingleBeside | None:
        """The best adapter by itself, as far as weighing says, beside the base and the best soup."""
        alone = best_alone(self.led.weighing)
        if alone is None:
            return None
        row, part = self.led.candidates[alone]
        if [one.digest for one in best.mixed.parts] == [part.digest]:
            return None
        exact = self.work.request.model_copy(update={"mixing": ConcatMixing()})

        def by_itself(led: _Led) -> How | None:
            number = best_alone(led.weighing)
            return None if number is None else ([led.parts[number]], exact)

        one = self._by(by_itself)
        ahead = paired_difference(best.nll, one.nll, best.tokens)
        return SingleBeside(
            ref=row.ref, digest=row.digest, difference=one.verification.difference,
            standard_error=one.verification.standard_error, ahead=ahead.difference,
            ahead_standard_error=ahead.standard_error,
        )  # fmt: skip

    def noise(self, best: Tried) -> NoiseControl | None:
        """What weighing makes of noise, beside the base and the best soup, on the same passages."""
        drawn = []
        for led, fold in self.by_fold:
            if led.asked is None:
                return None
            self.work.progress(3, 4, f"weighing {len(led.candidates)} adapters of noise")
            held = tuple(self.work.texts[number] for number in fold)
            asked = led.asked.model_copy(update={"alone": 0, "noise": True, "unseen": held, "beside": ()})
            drawn.append(self.work.weigh(self.work.base.entry.id, asked))
        return _noise(drawn, self.base_nll, best)


def _way(way: Way) -> Callable[[_Led], How | None]:
    return lambda led: led.ways.get(way)


def _narrowest(how: How | None) -> How | None:
    """The same as narrow as one of its parts, or as it is where that cannot be."""
    return None if how is None else narrow(*how) or how


def _report(
    led: _Led, every: Sequence[_Led], tried: Mapping[Way, Tried], request: CookRequest, *, held_out: int,
    shape: BaseShape, noise: NoiseControl | None, single: SingleBeside | None,
) -> Search:  # fmt: skip
    """What was looked at and tried; work is that of all weighings."""
    assert request.effort is not None
    weighings = [one.weighing for one in every if one.weighing is not None]
    return Search(
        effort=request.effort,
        candidates=reported(led.candidates, led.weighing, shape),
        left_out=led.left_out[0],
        more_left_out=led.left_out[1],
        trials=tuple(
            Trial(
                way=way, members=len(one.mixed.parts), width=one.mixed.config.width,
                difference=one.verification.difference, standard_error=one.verification.standard_error,
            )
            for way, one in tried.items()
        ),
        decided_on=led.decided_on,
        held_out=held_out,
        tokens=sum(one.screen_tokens + one.step_tokens for one in weighings),
        seconds=sum(one.seconds for one in every),
        noise=noise,
        single=single,
    )  # fmt: skip


def _noise(weighings: Sequence[Weighing], base_nll: np.ndarray, best: Tried) -> NoiseControl:
    unseen = [one.unseen for one in weighings if one.unseen is not None]
    noise = np.array([nll for one in unseen for nll in one.nll])
    if [count for one in unseen for count in one.tokens] != best.tokens.tolist():
        raise Internal("noise and the soup were scored on different tokens")
    gained, ahead = (
        paired_difference(noise, base_nll, best.tokens), paired_difference(best.nll, noise, best.tokens)
    )  # fmt: skip
    return NoiseControl(
        difference=gained.difference, standard_error=gained.standard_error,
        ahead=ahead.difference, ahead_standard_error=ahead.standard_error,
    )  # fmt: skip


def _loss(one: Tried) -> float:
    return one.verification.soup_nll
