"""From ranked candidates to a Selection: cap, single, what to do where none passes, and why others are left out.

Selectors differ in their scores only; this part is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import Ingredient, LeftOut, Selection, SelectOptions, weights_by_digest


@dataclass(frozen=True)
class Member:
    """One adapter of a pool, standing for one domain."""

    ref: str
    digest: str
    domain: str


@dataclass(frozen=True)
class Candidate:
    """A member that may be chosen; `fails` says in words why it does not pass, and is empty if it does.

    `weight` is its part in a soup, before the weights of those that are chosen are brought to a sum of 1.
    """

    member: Member
    score: float
    fails: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """What goes into the Selection beside the choice, under the names it has there."""

    units: int
    counts: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    novelty: float | None = None
    warnings: tuple[str, ...] = ()


def split_excluded(members: Sequence[Member], exclude: Mapping[str, str]) -> tuple[list[int], list[tuple[Member, str]]]:
    """Indices of the members that stay, and those that are out with their reason."""
    kept = [index for index, member in enumerate(members) if member.digest not in exclude]
    out = [(member, exclude[member.digest]) for member in members if member.digest in exclude]
    return kept, out


@dataclass(frozen=True)
class Ranking:
    """The candidates of one sample, best first, and what is said of them; `selection` chooses among them.

    `capped` is False for a selector that ranks nothing, so that no cap can be meant. `none_passes` is the sentence for
    a sample nothing was good enough for. `units` is None for a selector that looks at no text.
    """

    ranked: Sequence[Candidate]
    excluded: Sequence[tuple[Member, str]]
    options: SelectOptions
    evidence: Evidence
    none_passes: str = ""
    capped: bool = True
    units: UnitScores | None = None

    def selection(self, *, max_ingredients: int | None = None) -> Selection:
        """Those that pass, at most as many as the options say, or `max_ingredients`, with weights that sum to 1."""
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
            left_out=(
                *(
                    LeftOut(**vars(c.member), reason=self._why(c, len(taken)), score=c.score)
                    for c in self.ranked
                    if c.member.digest not in weights
                ),
                *(LeftOut(**vars(member), reason=why) for member, why in self.excluded),
            ),
            abstained=not taken,
            reason=reason,
            **vars(self.evidence),
        )

    def weights(self, digests: Iterable[str]) -> dict[str, str]:
        """Canonical weights of these candidates beside each other, by digest."""
        own = {candidate.member.digest: candidate.weight for candidate in self.ranked}
        chosen = {digest: own[digest] for digest in digests}
        return weights_by_digest(chosen) if chosen else {}

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
        passing = [candidate for candidate in self.ranked if not candidate.fails]
        if not self.ranked:
            return [], "No adapter of the pool is left to choose from."
        if self.options.single:
            return self.ranked[:1], f"The best match alone, as asked for: {self.ranked[0].member.domain}."
        if passing:
            taken = passing[:most] if self.capped else passing
            return taken, f"{len(passing)} of {len(self.ranked)} domains pass, {len(taken)} taken, best first."
        if self.options.when_none == "top":
            return self.ranked[:1], f"{self.none_passes} The best match was taken, as asked for."
        return [], self.none_passes

    def _why(self, candidate: Candidate, taken: int) -> str:
        if self.options.single:
            return "Only the best match was asked for."
        return candidate.fails or f"Passes, but {taken} better ones are taken already."
