"""Candidates of a search: the best-ranked adapters that go side by side, those asked for by name, and why not others.

Called by `cook.search`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from registry.catalogue.rows import AdapterRow
from registry.context import Caller, Registry
from registry.cook.choose import MOST, part_of, rows_of
from registry.mixing import concat
from registry.mixing.auto import exclusion_reasons
from registry.mixing.compat import SoupIngredient
from registry.names import parse_ref
from registry.select.select import Chosen
from registry.selectors.ranking import Why, listed_of
from registry.spec import ConcatMixing, CookRequest, LeftOut

BLOCK = 256
"""Ranked adapters that are read together, where not all are needed."""
NOT_BESIDE = "Cannot be put side by side with the best-ranked that can be at all."
Candidates = list[tuple[AdapterRow, SoupIngredient]]


def candidates_of(
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
    registry: Registry, chosen: Chosen, named: Sequence[SoupIngredient]
) -> Iterator[list[tuple[AdapterRow, SoupIngredient, str]]]:
    """The ranked adapters block by block, each with why it cannot be put beside the first that can be at all.

    That is the best-ranked, or where none of the ranked can be the first of those that are `named`.
    """
    digests = [one.member.digest for one in chosen.ranking.ranked]
    pending: Candidates = []
    best: SoupIngredient | None = None
    for first in range(0, len(digests), BLOCK):
        rows = rows_of(registry, chosen, digests[first : first + BLOCK])
        pending += [(row, part_of(row, "1", registry.blobs)) for row in rows.values()]
        best = best or next((part for _, part in pending if part.config.joinable), None)
        if best is not None:
            yield _beside(best, pending)
            pending = []
    if pending:
        yield _beside(next((part for part in named if part.config.joinable), None), pending)


def _beside(best: SoupIngredient | None, pending: Candidates) -> list[tuple[AdapterRow, SoupIngredient, str]]:
    """These with why they cannot be put side by side with the best, or where there is none at all."""
    if best is None:
        why = {part.digest: " ".join(concat.check([part], ConcatMixing())) for _, part in pending}
    else:
        why = exclusion_reasons(best, [part for _, part in pending], ConcatMixing(), ranked=True)
    return [(row, part, why.get(part.digest, "")) for row, part in pending]


def _named(registry: Registry, caller: Caller, request: CookRequest) -> list[AdapterRow]:
    """The adapters of `also`; raises NotFound, Retired or InvalidName."""
    with registry.database.read() as catalogue:
        return [catalogue.adapters.resolve(caller.namespaces, parse_ref(ref)) for ref in request.also]
