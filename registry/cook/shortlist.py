"""The adapters to weigh: the best-ranked that can be concatenated, and those that the request names.

Called by `registry.cook.weighing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from registry.catalogue.rows import AdapterRow
from registry.cook.ingredients import check_not_learnt, ingredient_of, rows_of
from registry.cook.job import CookJob
from registry.mixing import concat
from registry.mixing.auto import exclusion_reasons
from registry.mixing.compat import SoupIngredient
from registry.names import parse_ref
from registry.select.select import Chosen
from registry.selectors.ranking import Reason, list_excluded
from registry.spec import MAX_INGREDIENTS, ConcatMixing, LeftOut

BLOCK = 256
"""Ranked adapters that are read at once; often the first block is enough."""
NOT_BESIDE = "Cannot be put side by side with the best-ranked that can be at all."
Adapter = tuple[AdapterRow, SoupIngredient]


@dataclass(frozen=True)
class Shortlist:
    """Adapters to weigh; `excluded` are the first of the others, `more_excluded` counts the rest by reason.

    Adapters without a rank come last.
    """

    adapters: list[Adapter]
    excluded: tuple[LeftOut, ...]
    more_excluded: dict[str, int]

    @property
    def ingredients(self) -> list[SoupIngredient]:
        """The adapters as they are mixed, each at weight 1."""
        return [ingredient for _, ingredient in self.adapters]


def shortlist(job: CookJob, selection: Chosen) -> Shortlist:
    """The best-ranked adapters that can be concatenated with the first such adapter, and the reasons against others.

    Adapters that the request names are always included. A ranking is read in blocks, until there are enough.
    Raises NotFound, Retired, InvalidName or InvalidParameter for an adapter that the request names.
    """
    blobs = job.registry.blobs
    by_name = {row.digest: (row, ingredient_of(row, "1", blobs)) for row in _rows_by_name(job)}
    check_not_learnt(job, [ingredient for _, ingredient in by_name.values()], param="also")
    most = MAX_INGREDIENTS - len(by_name)
    adapters: list[Adapter] = []
    unfit: dict[str, str] = {}
    read = 0
    for block in _blocks(job, selection, [ingredient for _, ingredient in by_name.values()]):
        read += len(block)
        unfit |= {row.digest: reason for row, _, reason in block if reason}
        adapters += [(row, ingredient) for row, ingredient, reason in block if not reason and row.digest not in by_name]
        if len(adapters) > most:
            break
    better = f"{most} better-ranked ones are weighed."
    reasons = {digest: Reason(reason, NOT_BESIDE) for digest, reason in unfit.items()}
    reasons |= {row.digest: Reason(better, better) for row, _ in adapters[most:]}
    members = [candidate.member for candidate in selection.ranking.ranked]
    excluded = [
        (member, reasons[member.digest])
        for member in members[:read]
        if member.digest in reasons and member.digest not in by_name
    ]
    excluded += [(member, Reason(better, better)) for member in members[read:] if member.digest not in by_name]
    excluded += [
        (member, Reason(reason, reason))
        for member, reason in selection.ranking.excluded
        if member.digest not in by_name
    ]
    return Shortlist([*adapters[:most], *by_name.values()], *list_excluded(excluded))


def _blocks(
    job: CookJob, selection: Chosen, by_name: Sequence[SoupIngredient]
) -> Iterator[list[tuple[AdapterRow, SoupIngredient, str]]]:
    """The ranked adapters block by block, each with the reason why it cannot be concatenated with the best, else "".

    The best is the first adapter of the ranking that can be concatenated, else the first such that the request names.
    """
    digests = [candidate.member.digest for candidate in selection.ranking.ranked]
    pending: list[Adapter] = []
    best: SoupIngredient | None = None
    for first in range(0, len(digests), BLOCK):
        rows = rows_of(job.registry, selection, digests[first : first + BLOCK])
        pending += [(row, ingredient_of(row, "1", job.registry.blobs)) for row in rows.values()]
        best = best or _first_joinable([ingredient for _, ingredient in pending])
        if best is not None:
            yield _beside(best, pending)
            pending = []
    if pending:
        yield _beside(_first_joinable(by_name), pending)


def _first_joinable(ingredients: Sequence[SoupIngredient]) -> SoupIngredient | None:
    return next((ingredient for ingredient in ingredients if ingredient.config.joinable), None)


def _beside(best: SoupIngredient | None, pending: Sequence[Adapter]) -> list[tuple[AdapterRow, SoupIngredient, str]]:
    """Adapters, each with the reason why it cannot be concatenated with the best (or with any, without a best)."""
    if best is None:
        reasons = {ingredient.digest: " ".join(concat.check([ingredient], ConcatMixing())) for _, ingredient in pending}
    else:
        reasons = exclusion_reasons(best, [ingredient for _, ingredient in pending], ConcatMixing(), ranked=True)
    return [(row, ingredient, reasons.get(ingredient.digest, "")) for row, ingredient in pending]


def _rows_by_name(job: CookJob) -> list[AdapterRow]:
    """The adapters of the request's `also`; raises NotFound, Retired or InvalidName."""
    with job.registry.database.read() as catalogue:
        return [catalogue.adapters.resolve(job.caller.namespaces, parse_ref(ref)) for ref in job.request.also]
