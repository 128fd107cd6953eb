"""Turns ranked candidates into a Selection: those that pass, up to the cap, and reasons against the rest; or abstains.

Shared by all selectors, which differ in their scores only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import Ingredient, LeftOut, Selection, SelectOptions, weights_by_digest

LISTED = 32
"""Candidates not chosen that a Selection names, the best-ranked; the rest are counted by reason."""


@dataclass(frozen=True)
class Member:
    """One adapter of a pool, standing for one domain."""

    ref: str
    digest: str
    domain: str


class Candidate(NamedTuple):
    """A member with its score, and whether it passes the selector's threshold.

    `weight` is relative: weights of the chosen candidates are normalised to a sum of 1.
    """

    member: Member
    score: float
    passes: bool = True
    weight: float = 1.0


@dataclass(frozen=True)
class RankedCandidates(Sequence[Candidate]):
    """Candidates, best first, created on access: of a large pool few are ever looked at.

    `order` (n,) holds indices into `members`; `scores` and `passes` (n,) are in that order. With `weighted` a
    candidate's weight is its score, else all weigh alike.
    """

    members: Sequence[Member]
    order: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    passes: npt.NDArray[np.bool_]
    weighted: bool = False

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, rank: int) -> Candidate: ...
    @overload
    def __getitem__(self, rank: slice) -> list[Candidate]: ...
    def __getitem__(self, rank: int | slice) -> Candidate | list[Candidate]:
        if isinstance(rank, slice):
            return [self[index] for index in range(*rank.indices(len(self)))]
        score = float(self.scores[rank])
        member = self.members[self.order[rank]]
        return Candidate(member, score, bool(self.passes[rank]), score if self.weighted else 1.0)

    @property
    def num_passing(self) -> int:
        """The number of candidates that pass."""
        return int(np.count_nonzero(self.passes))


class Reason(NamedTuple):
    """Why a member is not chosen: a sentence about it, and the reason it is counted under with others."""

    text: str
    shared: str


def list_excluded(
    excluded: Sequence[tuple[Member, Reason]], limit: int = LISTED
) -> tuple[tuple[LeftOut, ...], dict[str, int]]:
    """The first `limit` of the excluded members with their reasons, and the number of the rest by shared reason."""
    listed = tuple(LeftOut(**vars(member), reason=reason.text) for member, reason in excluded[:limit])
    return listed, dict(Counter(reason.shared for _, reason in excluded[limit:]).most_common())


@dataclass(frozen=True)
class Evidence:
    """Fields of a Selection beside the choice, under the names they have there."""

    units: int
    counts: dict[str, int] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    novelty: float | None = None
    warnings: tuple[str, ...] = ()


def split_excluded(
    members: Sequence[Member], exclude: Mapping[str, str]
) -> tuple[npt.NDArray[np.int64], list[tuple[Member, str]]]:
    """Indices of the members that remain, and the excluded members with their reasons."""
    if not exclude:
        return np.arange(len(members)), []
    remaining = np.array([i for i, member in enumerate(members) if member.digest not in exclude], dtype=np.int64)
    excluded = [(member, exclude[member.digest]) for member in members if member.digest in exclude]
    return remaining, excluded


def best_first(scores: npt.NDArray[np.float64], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ascending `indices` into `scores`, sorted by descending score; ties keep their order."""
    order: npt.NDArray[np.int64] = indices[np.argsort(-scores[indices], kind="stable")]
    return order


@dataclass(frozen=True)
class Ranking:
    """The candidates of one sample, best first, and the sentences about them; `selection` chooses among them.

    `explain_failure` says by its score why a candidate does not pass, `failure` is the reason that such candidates
    are counted under. `abstention` is the sentence for a sample for which none passes. `capped` is False for a selector
    that ranks nothing, so that no cap applies. `units` is None for a selector that looks at no text.
    """

    ranked: RankedCandidates
    excluded: Sequence[tuple[Member, str]]
    options: SelectOptions
    evidence: Evidence
    abstention: str = ""
    failure: str = ""
    explain_failure: Callable[[float], str] = lambda _: ""
    capped: bool = True
    units: UnitScores | None = None

    def selection(self, *, max_ingredients: int | None = None, listed: int | None = LISTED) -> Selection:
        """Choose the passing candidates up to the cap (`max_ingredients`, else the options'), weights summing to 1.

        The best `listed` of the others are named, all with None.
        """
        cap = max_ingredients or self.options.most
        chosen, reason = self._choose(cap)
        weights = self.weights(candidate.member.digest for candidate in chosen)
        stability = self.stability(cap)
        return Selection(
            selected=tuple(
                Ingredient(
                    **vars(candidate.member),
                    weight=weights[candidate.member.digest],
                    score=candidate.score,
                    stability=stability.get(candidate.member.digest),
                )
                for candidate in chosen
            ),
            abstained=not chosen,
            reason=reason,
            **self.listing(weights, listed=listed),
            **vars(self.evidence),
        )

    def listing(
        self, chosen: Collection[str], *, reasons: Mapping[str, Reason] = {}, listed: int | None = LISTED
    ) -> dict[str, Any]:
        """Fields of a Selection of the digests `chosen` that describe the members not chosen, by field name.

        `reasons` override the ranking's own, by digest.
        """
        unchosen = list(
            islice((candidate for candidate in self.ranked if candidate.member.digest not in chosen), listed)
        )
        excluded = self.excluded[: None if listed is None else listed - len(unchosen)]
        left_out = [
            LeftOut(
                **vars(candidate.member),
                reason=self._reason(candidate, len(chosen), reasons),
                score=candidate.score,
            )
            for candidate in unchosen
        ]
        left_out += [LeftOut(**vars(member), reason=reason) for member, reason in excluded]
        named = {*chosen, *(candidate.member.digest for candidate in unchosen)}
        more = Counter(reason for _, reason in self.excluded[len(excluded) :])
        more.update(reason.shared for digest, reason in reasons.items() if digest not in named)
        counted = Counter(candidate.passes for candidate in self._candidates({*named, *reasons}))
        passing = self.ranked.num_passing
        for passes, total in ((True, passing), (False, len(self.ranked) - passing)):
            if total > counted[passes]:
                more[self._shared_reason(passes, len(chosen))] += total - counted[passes]
        return {
            "left_out": tuple(left_out),
            "more_left_out": dict(more.most_common()),
            "scores": {candidate.member.domain: candidate.score for candidate in self._candidates(named)},
        }

    def weights(self, digests: Iterable[str]) -> dict[str, str]:
        """Canonical weights of these candidates beside each other, by digest."""
        weights = {candidate.member.digest: candidate.weight for candidate in self._candidates(set(digests))}
        return weights_by_digest(weights) if weights else {}

    def _candidates(self, digests: Collection[str]) -> Iterator[Candidate]:
        """The candidates of these digests, best first."""
        return islice((candidate for candidate in self.ranked if candidate.member.digest in digests), len(digests))

    def stability(self, cap: int, *, without: Collection[str] = ()) -> dict[str, float]:
        """The share of draws of the sample's units in which each candidate is among the `cap` chosen, by digest.

        Candidates of the digests `without` take no part. Empty for a selector that looks at no text.
        """
        if self.units is None or not self.ranked:
            return {}
        digests = [candidate.member.digest for candidate in self.ranked[:COMPETITORS]]
        shares = self.units.chosen(
            np.array([digest not in without for digest in digests]),
            most=1 if self.options.single else cap,
            best_anyway=self.options.single or self.options.when_none == "top",
            least=-np.inf if self.options.single else None,
        )
        return {digest: float(share) for digest, share in zip(digests, shares, strict=True)}

    def _choose(self, cap: int) -> tuple[Sequence[Candidate], str]:
        """The chosen candidates, and the sentence that says why."""
        if not self.ranked:
            return [], "No adapter of the pool is left to choose from."
        if self.options.single:
            return self.ranked[:1], f"The best match alone, as asked for: {self.ranked[0].member.domain}."
        passing = self.ranked.num_passing
        if passing:
            number = min(cap, passing) if self.capped else passing
            chosen = list(islice((candidate for candidate in self.ranked if candidate.passes), number))
            return chosen, f"{passing} of {len(self.ranked)} domains pass, {number} taken, best first."
        if self.options.when_none == "top":
            return self.ranked[:1], f"{self.abstention} The best match was taken anyway."
        return [], self.abstention

    def _reason(self, candidate: Candidate, num_chosen: int, reasons: Mapping[str, Reason]) -> str:
        """Why a candidate is not chosen, in a sentence about it."""
        if candidate.member.digest in reasons:
            return reasons[candidate.member.digest].text
        if candidate.passes or self.options.single:
            return self._shared_reason(candidate.passes, num_chosen)
        return self.explain_failure(candidate.score)

    def _shared_reason(self, passes: bool, num_chosen: int) -> str:
        """The reason that candidates which are not chosen are counted under."""
        if self.options.single:
            return "Only the best match was asked for."
        return f"Passes, but {num_chosen} better ones are taken already." if passes else self.failure
