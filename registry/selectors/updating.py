"""When a fitted selector can be brought up to date by what came and went, and when it has to be fitted again.

In a pool of more than `LARGE` domains a fit keeps statistics that are sums or rows of single domains, and proves itself
on `LARGE` of them, those with the lowest digests. There a push updates; below, every fit is whole, and quick.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from registry.selectors.contract import Domain
from registry.selectors.drawing import has_few_units
from registry.selectors.ranking import Member

LARGE = 256
PROOF_UNITS = 8
"""Held-out units of a domain that a large pool is proved on; a small one takes all there are."""
CELLS = 2**20
"""Of an array of held-out units against domains that is made at once: 8 MiB, which stay near the processor."""
DRIFT = 0.25
"""More than this share of the domains came or went since the last whole fit: what is learnt of all is learnt again."""

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Age:
    """Domains of the last whole fit, those that came or went since, and those with few units (`has_few_units`)."""

    fitted: int
    changed: int
    few: int

    @classmethod
    def of(cls, domains: Sequence[Domain]) -> Age:
        """That of a whole fit."""
        return cls(len(domains), 0, sum(map(has_few_units, domains)))

    def after(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Age:
        """That of an update."""
        few = self.few + sum(map(has_few_units, added)) - sum(map(has_few_units, removed))
        return Age(self.fitted, self.changed + len(added) + len(removed), few)

    @property
    def cross_fit(self) -> bool:
        """How the pool is proved (`registry.selectors.drawing`)."""
        return self.few > 0

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """As a state has it."""
        return np.array([self.fitted, self.changed, self.few], dtype=np.int64)


def proof_members(members: Sequence[Member]) -> list[int]:
    """The members a fit proves itself on, by their numbers."""
    if len(members) <= LARGE:
        return list(range(len(members)))
    return sorted(sorted(range(len(members)), key=lambda number: members[number].digest)[:LARGE])


def blocks(units: int, domains: int) -> Iterator[slice]:
    """Parts of `units` rows of which an array with a column a domain has about `CELLS` cells each."""
    step = max(1, CELLS // domains)
    return (slice(begin, begin + step) for begin in range(0, units, step))


def is_due(
    members: Sequence[Member], age: Age, added: Sequence[Domain], removed: Sequence[Domain], *, learns_of_all: bool
) -> bool:
    """Whether these changes take a whole fit; `learns_of_all` of a selector with more than sums and rows of domains."""
    after = age.after(added, removed)
    proved_on = {members[number].digest for number in proof_members(members)}
    return (
        min(len(members), len(members) + len(added) - len(removed)) <= LARGE
        or after.cross_fit != age.cross_fit
        or any(domain.digest in proved_on for domain in removed)
        or (learns_of_all and after.changed > DRIFT * age.fitted)
    )


@dataclass(frozen=True)
class Change:
    """The members after an update in their order, and where the rows of each come from.

    `sources` are row numbers in the kept rows, or in the new ones counted on from there.
    """

    members: tuple[Member, ...]
    kept: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]

    @classmethod
    def of(cls, members: Sequence[Member], added: Sequence[Domain], removed: Collection[Domain]) -> Change:
        """The members without `removed` and with `added`, in the canonical order."""
        gone = {domain.digest for domain in removed}
        kept = [number for number, member in enumerate(members) if member.digest not in gone]
        every = [*(members[number] for number in kept), *(domain.member for domain in added)]
        sources = sorted(range(len(every)), key=lambda number: (every[number].domain, every[number].digest))
        return cls(tuple(every[number] for number in sources), np.array(kept, np.int64), np.array(sources, np.int64))

    def rows(self, before: npt.NDArray[Scalar], new: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """An array with a row a member, after the change."""
        old = self.sources < len(self.kept)
        places = np.zeros(len(self.sources), np.int64)
        places[old] = self.kept[self.sources[old]]
        found = before[places]  # of a large pool the arrays are tens of megabytes: each is copied once
        found[~old] = new[self.sources[~old] - len(self.kept)]
        return found
