"""When a fitted selector can be brought up to date by what came and went, and when it has to be fitted again.

In a pool of more than `LARGE` domains a fit keeps statistics that are sums or rows of single domains, and proves itself
on `LARGE` of them, those with the lowest digests. There a push updates; below, every fit is whole, and quick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from registry.selectors.contract import Arrays, Domain, Float64, Selector
from registry.selectors.drawing import HELD_OUT, DomainDraw, draw_domain, has_few_units
from registry.selectors.ranking import Member
from registry.spec import CosineSpec, PosteriorSpec

LARGE = 256
PROOF_UNITS = 8
"""Held-out units of a domain that a large pool is proved on; a small one takes all there are."""
CELLS = 2**20
"""Of an array of held-out units against domains that is made at once: 8 MiB, which stay near the processor."""
DRIFT = 0.25
"""More than this share of the domains came or went since the last whole fit: what is learnt of all is learnt again."""

Scalar = TypeVar("Scalar", bound=np.generic)
Spec = TypeVar("Spec", bound=CosineSpec | PosteriorSpec)


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


class UpdatableSelector(Selector[Spec]):
    """A selector that can be brought up to date; besides what it learned it keeps `age_` and `held_out_`.

    `held_out_` has, by digest, the held-out vectors (n, d) of the domains that the selector is proved on.
    """

    age_: Age
    held_out_: dict[str, Float64]

    def _draw(self, domain: Domain) -> DomainDraw:
        """Split a domain's units into those to learn from and those to prove with."""
        return draw_domain(domain, seed=self.spec.seed, cross_fit=self.age_.cross_fit)

    def _hold_out(
        self, domains: Sequence[Domain], before: Mapping[str, Float64], transform: Callable[[Float64], Float64]
    ) -> None:
        """Keep held-out vectors to prove on: transformed those of `domains`, all others as they were `before`."""
        most = HELD_OUT if len(self.members_) <= LARGE else PROOF_UNITS
        new = {domain.digest: domain for domain in domains}
        self.held_out_ = {}
        for number in proof_members(self.members_):
            digest = self.members_[number].digest
            if digest in new:
                self.held_out_[digest] = transform(self._draw(new[digest]).proof_test[:most])
            else:
                self.held_out_[digest] = before[digest]

    def _held_out_units(self) -> tuple[Float64, npt.NDArray[np.int64]]:
        """All held-out vectors (n, d), and the number of the member that each belongs to (n,)."""
        numbers = {member.digest: number for number, member in enumerate(self.members_)}
        members = np.repeat([numbers[digest] for digest in self.held_out_], list(map(len, self.held_out_.values())))
        return np.concatenate(list(self.held_out_.values())), members

    def _arrays_for_updates(self) -> Arrays:
        """The age and the held-out vectors, as a state stores them."""
        return {
            "age": self.age_.array,
            "held_out": np.concatenate(list(self.held_out_.values())),
            "held_out_units": np.array([len(part) for part in self.held_out_.values()], dtype=np.int64),
        }

    def _restore_age(self, arrays: Arrays) -> None:
        self.age_ = Age(*map(int, self._stored(arrays, "age", np.int64, (3,))))

    def _restore_held_out(self, arrays: Arrays, dimensions: int) -> None:
        digests = [self.members_[number].digest for number in proof_members(self.members_)]
        counts = self._stored(arrays, "held_out_units", np.int64, (len(digests),))
        units = self._floats(arrays, "held_out", int(counts.sum()), dimensions)
        self.held_out_ = dict(zip(digests, np.split(units, np.cumsum(counts)[:-1]), strict=True))
