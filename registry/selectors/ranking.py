"""From ranked candidates to a Selection: cap, single, what to do where none passes, and why others are left out.

Selectors differ in their scores only; this part is the same for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import Ingredient, LeftOut, Selection, SelectOptions, weights_by_digest

LISTED = 32
"""Of those that are left out so many are listed, those ranked best; of the others their number is told."""


@dataclass(frozen=True)
class Member:
    """One adapter of a pool, standing for one domain."""

    ref: str
    digest: str
    domain: str


class Candidate(NamedTuple):
    """A member that may be chosen, and whether it is good enough to be.

    `weight` is its part in a soup, before the weights of those that are chosen are brought to a sum of 1.
    """

    member: Member
    score: float
    passes: bool = True
    weight: float = 1.0


@dataclass(frozen=True)
class Ranked(Sequence[Candidate]):
    """Candidates, best first, made when they are looked at: of a large pool few ever are.

    `order` (n,) are their numbers among `members`; `scores` and `passes` (n,) are theirs in that order. With `weighted`
    the score is the weight, else all weigh alike.
    """

    members: Sequence[Member]
    order: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    passes: npt.NDArray[np.bool_]
    weighted: bool = False

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | list[Candidate]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        score = float(self.scores[at])
        member = self.members[self.order[at]]
        return Candidate(member, score, bool(self.passes[at]), score if self.weighted else 1.0)

    @property
    def passing(self) -> int:
        """How many pass."""
        return int(np.count_nonzero(self.passes))


class Why(NamedTuple):
    """Why a member is left out: in words of its own, and in those that it shares with others like it."""

    own: str
    shared: str


def listed_of(left: Sequence[tuple[Member, Why]], most: int = LISTED) -> tuple[tuple[LeftOut, ...], dict[str, int]]:
    """The first of those left out, and how many more there are by reason."""
    first = tuple(LeftOut(**vars(member), reason=why.own) for member, why in left[:most])
    return first, dict(Counter(why.shared for _, why in left[most:]).most_common())


@dataclass(frozen=True)
class Evidence:
    """What goes into the Selection beside the choice, under the names it has there."""

    units: int
    counts: dict[str, int] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    novelty: float | None = None
    warnings: tuple[str, ...] = ()


def split_excluded(
    members: Sequence[Member], exclude: Mapping[str, str]
) -> tuple[Sequence[int], list[tuple[Member, str]]]:
    """Indices of the members that stay, and those that are out with their reason."""
    if not exclude:
        return range(len(members)), []
    kept = [index for index, member in enumerate(members) if member.digest not in exclude]
    out = [(member, exclude[member.digest]) for member in members if member.digest in exclude]
    return kept, out


def best_first(scores: npt.NDArray[np.float64], which: Sequence[int]) -> npt.NDArray[np.int64]:
    """`which`, numbers of scores that count up, by falling score; equal scores stay as they are."""
    numbers = np.array(which, dtype=np.int64)
    return numbers[np.argsort(-scores[numbers], kind="stable")]


@dataclass(frozen=True)
class Ranking:
    """The candidates of one sample, best first, and what is said of them; `selection` chooses among them.

    Of those that do not pass, `fails` says in words why not, by their score, and `failing` in words that fit all of
    them. `capped` is False for a selector that ranks nothing, so that no cap can be meant. `none_passes` is the
    sentence for a sample nothing was good enough for. `units` is None for a selector that looks at no text.
    """

    ranked: Ranked
    excluded: Sequence[tuple[Member, str]]
    options: SelectOptions
    evidence: Evidence
    none_passes: str = ""
    failing: str = ""
    fails: Callable[[float], str] = lambda _: ""
    capped: bool = True
    units: UnitScores | None = None

    def selection(self, *, max_ingredients: int | None = None, listed: int | None = LISTED) -> Selection:
        """Those that pass, at most as many as the options say, or `max_ingredients`, with weights that sum to 1.

        Of those left out the best `listed` are named, with None all.
        """
        most = max_ingredients or self.options.most
        taken, reason = self._taken(most)
        weights = self.weights(c.member.digest for c in taken)
        stable = self.stability(most)
        return Selection(
            selected=tuple(
                Ingredient(
                    **vars(c.member),
                    weight=weights[c.member.digest],
                    score=c.score,
                    stability=stable.get(c.member.digest),
                )
                for c in taken
            ),
            abstained=not taken,
            reason=reason,
            **self.listing(weights, listed=listed),
            **vars(self.evidence),
        )

    def listing(
        self, chosen: Collection[str], *, why: Mapping[str, Why] = {}, listed: int | None = LISTED
    ) -> dict[str, Any]:
        """What a Selection of these digests says of the others, under the names it has there.

        `why` has other reasons for some of them than the ranking has, by digest.
        """
        others = (one for one in self.ranked if one.member.digest not in chosen)
        shown = list(islice(others, listed))
        gone = self.excluded[: None if listed is None else listed - len(shown)]
        reasons = (self._why(one, len(chosen), why) for one in shown)
        named = {*chosen, *(one.member.digest for one in shown)}
        more = Counter(reason for _, reason in self.excluded[len(gone) :])
        more.update(reason.shared for digest, reason in why.items() if digest not in named)
        told = Counter(one.passes for one in self._of({*named, *why}))
        for passes, count in {True: self.ranked.passing, False: len(self.ranked) - self.ranked.passing}.items():
            if count > told[passes]:
                more[self._plainly(passes, len(chosen))] += count - told[passes]
        return {
            "left_out": (
                *(
                    LeftOut(**vars(one.member), reason=reason.own, score=one.score)
                    for one, reason in zip(shown, reasons, strict=True)
                ),
                *(LeftOut(**vars(member), reason=reason) for member, reason in gone),
            ),
            "more_left_out": dict(more.most_common()),
            "scores": {one.member.domain: one.score for one in self._of(named)},
        }

    def weights(self, digests: Iterable[str]) -> dict[str, str]:
        """Canonical weights of these candidates beside each other, by digest."""
        own = {one.member.digest: one.weight for one in self._of(set(digests))}
        return weights_by_digest(own) if own else {}

    def _of(self, digests: Collection[str]) -> list[Candidate]:
        """The candidates of these digests, best first."""
        found: list[Candidate] = []
        for one in self.ranked:
            if len(found) == len(digests):
                break
            if one.member.digest in digests:
                found.append(one)
        return found

    def stability(self, most: int, *, without: Collection[str] = ()) -> dict[str, float]:
        """The share of draws of the sample's units in which each candidate is among the `most` taken, by digest.

        `without` are digests that take no part. Empty for a selector that looks at no text.
        """
        if self.units is None or not self.ranked:
            return {}
        digests = [candidate.member.digest for candidate in self.ranked[:COMPETITORS]]
        shares = self.units.chosen(
            np.array([digest not in without for digest in digests]),
            most=1 if self.options.single else most,
            best_anyway=self.options.single or self.options.when_none == "top",
            least=-np.inf if self.options.single else None,
        )
        return {digest: float(share) for digest, share in zip(digests, shares, strict=True)}

    def _taken(self, most: int) -> tuple[Sequence[Candidate], str]:
        """The candidates that are chosen, and the sentence that says why."""
        if not self.ranked:
            return [], "No adapter of the pool is left to choose from."
        if self.options.single:
            return self.ranked[:1], f"The best match alone, as asked for: {self.ranked[0].member.domain}."
        passing = self.ranked.passing
        if passing:
            found = (candidate for candidate in self.ranked if candidate.passes)
            taken = list(islice(found, min(most, passing) if self.capped else passing))
            return taken, f"{passing} of {len(self.ranked)} domains pass, {len(taken)} taken, best first."
        if self.options.when_none == "top":
            return self.ranked[:1], f"{self.none_passes} The best match was taken, as asked for."
        return [], self.none_passes

    def _why(self, candidate: Candidate, taken: int, why: Mapping[str, Why]) -> Why:
        if candidate.member.digest in why:
            return why[candidate.member.digest]
        shared = self._plainly(candidate.passes, taken)
        own = shared if candidate.passes or self.options.single else self.fails(candidate.score)
        return Why(own, shared)

    def _plainly(self, passes: bool, taken: int) -> str:
        """Why a candidate that is not chosen is not, in words that fit others as well."""
        if self.options.single:
            return "Only the best match was asked for."
        return f"Passes, but {taken} better ones are taken already." if passes else self.failing
