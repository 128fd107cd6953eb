"""From ranked candidates to a Selection: cap, single, what to do where none passes, and why others are left out.

Selectors differ in their scores only; this part is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from registry.selectors.contract import Member
from registry.spec import Ingredient, LeftOut, Selection, SelectOptions, weights_by_digest


@dataclass(frozen=True)
class Candidate:
    """A member that may be chosen; `fails` says in words why it does not pass, and is empty if it does."""

    member: Member
    score: float
    fails: str = ""


@dataclass(frozen=True)
class Evidence:
    """What goes into the Selection beside the choice."""

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


def choose(
    ranked: Sequence[Candidate],
    *,
    excluded: Sequence[tuple[Member, str]],
    options: SelectOptions,
    evidence: Evidence,
    cap: int | None,
    none_passes: str,
) -> Selection:
    """Choose from `ranked` (best first): those that pass, at most `cap` of them, with equal weights.

    `none_passes` is the sentence for a sample nothing was good enough for.
    """
    passing = [candidate for candidate in ranked if not candidate.fails]
    taken: Sequence[Candidate]
    if not ranked:
        taken, reason = [], "No adapter of the pool is left to choose from."
    elif options.single:
        taken, reason = ranked[:1], f"The best match alone, as asked for: {ranked[0].member.domain}."
    elif passing:
        taken = passing[:cap]
        reason = f"{len(passing)} of {len(ranked)} domains pass, {len(taken)} taken, best first."
    elif options.when_none == "top":
        taken, reason = ranked[:1], f"{none_passes} The best match was taken, as asked for."
    else:
        taken, reason = [], none_passes
    chosen = {candidate.member.digest for candidate in taken}
    return Selection(
        selected=_ingredients(taken),
        left_out=(
            *(_left_out(c, _why(c, options, len(taken))) for c in ranked if c.member.digest not in chosen),
            *(LeftOut(ref=m.ref, digest=m.digest, domain=m.domain, reason=why) for m, why in excluded),
        ),
        abstained=not taken,
        reason=reason,
        units=evidence.units,
        counts=evidence.counts,
        scores=evidence.scores,
        thresholds=evidence.thresholds,
        novelty=evidence.novelty,
        warnings=evidence.warnings,
    )


def _ingredients(taken: Sequence[Candidate]) -> tuple[Ingredient, ...]:
    if not taken:
        return ()
    weights = weights_by_digest({c.member.digest: 1.0 for c in taken})
    return tuple(
        Ingredient(
            ref=c.member.ref,
            digest=c.member.digest,
            domain=c.member.domain,
            weight=weights[c.member.digest],
            score=c.score,
        )
        for c in taken
    )


def _left_out(candidate: Candidate, reason: str) -> LeftOut:
    member = candidate.member
    return LeftOut(ref=member.ref, digest=member.digest, domain=member.domain, reason=reason, score=candidate.score)


def _why(candidate: Candidate, options: SelectOptions, taken: int) -> str:
    if options.single:
        return "Only the best match was asked for."
    return candidate.fails or f"Passes, but {taken} better ones are taken already."
