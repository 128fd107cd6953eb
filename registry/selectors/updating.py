"""Updates of fitted selectors when domains are added or removed, and when a whole fit is needed instead.

In a pool of more than `LARGE` domains a selector consists of sums over domains and rows by domain. Its proof uses the
`LARGE` domains with the lowest digests. Such a selector is updated; smaller pools are fitted whole, which is quick.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from registry.selectors.contract import Arrays, Domain, Float64, Selector
from registry.selectors.drawing import HELD_OUT, DomainDraw, draw_domain, has_few_units
from registry.selectors.ranking import Member
from registry.spec import CosineSpec, PosteriorSpec

LARGE = 256
PROOF_UNITS = 8
"""Held-out units of each domain that a large pool is proved on; a small one uses all."""
CELLS = 2**20
"""Cells of a block of the array of held-out units by domains: 8 MiB, which fit into the processor's cache."""
DRIFT = 0.25
"""State shared by all domains is fitted again after changes of more than this share of them."""

Scalar = TypeVar("Scalar", bound=np.generic)
Spec = TypeVar("Spec", bound=CosineSpec | PosteriorSpec)


@dataclass(frozen=True)
class Age:
    """Numbers of domains: of the last whole fit, changed since then, and with few units (`has_few_units`)."""

    fitted: int
    changed: int
    few: int

    @classmethod
    def of(cls, domains: Sequence[Domain]) -> Age:
        """The age after a whole fit."""
        return cls(len(domains), 0, sum(map(has_few_units, domains)))

    def after(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Age:
        """The age after an update."""
        few = self.few + sum(map(has_few_units, added)) - sum(map(has_few_units, removed))
        return Age(self.fitted, self.changed + len(added) + len(removed), few)

    @property
    def cross_fit(self) -> bool:
        """Return True if the pool is proved by 80/20 splits (`registry.selectors.drawing`)."""
        return self.few > 0

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """The age as an array of a state."""
        return np.array([self.fitted, self.changed, self.few], dtype=np.int64)


def proof_members(members: Sequence[Member]) -> list[int]:
    """Indices of the members that a selector of this pool is proved on."""
    if len(members) <= LARGE:
        return list(range(len(members)))
    return sorted(sorted(range(len(members)), key=lambda index: members[index].digest)[:LARGE])


def blocks(units: int, domains: int) -> Iterator[slice]:
    """Slices of the rows of an array (units, domains) with about `CELLS` cells each."""
    step = max(1, CELLS // domains)
    return (slice(begin, begin + step) for begin in range(0, units, step))


def needs_whole_fit(
    members: Sequence[Member], age: Age, added: Sequence[Domain], removed: Sequence[Domain], *, has_shared_state: bool
) -> bool:
    """Return True if these changes need a whole fit.

    With `has_shared_state` the selector has more than sums over domains and rows by domain, which ages (`DRIFT`).
    """
    after = age.after(added, removed)
    proof_digests = {members[index].digest for index in proof_members(members)}
    return (
        min(len(members), len(members) + len(added) - len(removed)) <= LARGE
        or after.cross_fit != age.cross_fit
        or any(domain.digest in proof_digests for domain in removed)
        or (has_shared_state and after.changed > DRIFT * age.fitted)
    )


@dataclass(frozen=True)
class Change:
    """The members after an update, in order, and the sources of their rows.

    `surviving` are the old row numbers of members that are not removed. `sources` has for each member an index into the
    surviving rows followed by the added ones.
    """

    members: tuple[Member, ...]
    surviving: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]

    @classmethod
    def of(cls, members: Sequence[Member], added: Sequence[Domain], removed: Collection[Domain]) -> Change:
        """The change from `members` to those without `removed` and with `added`, in the canonical order."""
        removed_digests = {domain.digest for domain in removed}
        surviving = [index for index, member in enumerate(members) if member.digest not in removed_digests]
        new = [*(members[index] for index in surviving), *(domain.member for domain in added)]
        sources = sorted(range(len(new)), key=lambda index: (new[index].domain, new[index].digest))
        return cls(tuple(new[index] for index in sources), np.array(surviving, np.int64), np.array(sources, np.int64))

    def rows(self, old: npt.NDArray[Scalar], added: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """An array with a row a member after the change, from the old array and the rows of added members."""
        is_old = self.sources < len(self.surviving)
        indices = np.zeros(len(self.sources), np.int64)
        indices[is_old] = self.surviving[self.sources[is_old]]
        rows = old[indices]  # arrays of a large pool are tens of megabytes: each is copied once
        rows[~is_old] = added[self.sources[~is_old] - len(self.surviving)]
        return rows


class UpdatableSelector(Selector[Spec]):
    """A selector that can be updated when domains change; it also stores `age_` and `held_out_`.

    `held_out_` has, by digest, the held-out vectors (n, d) of the domains that the selector is proved on.
    """

    age_: Age
    held_out_: dict[str, Float64]

    @abstractmethod
    def updated(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Self | None:
        """A selector as after a fit without `removed` and with `added`; None where a whole fit is needed.

        No digest of `added` is a member, unless it is in `removed` too. Raises InvalidParameter as `fit` does.
        """

    def _draw(self, domain: Domain) -> DomainDraw:
        """Split a domain's units into those to fit on and those to hold out."""
        return draw_domain(domain, seed=self.spec.seed, cross_fit=self.age_.cross_fit)

    def _hold_out(
        self, domains: Sequence[Domain], earlier: Mapping[str, Float64], transform: Callable[[Float64], Float64]
    ) -> None:
        """Set `held_out_`: of `domains` their held-out vectors, transformed, of other members those of `earlier`."""
        limit = HELD_OUT if len(self.members_) <= LARGE else PROOF_UNITS
        domains_by_digest = {domain.digest: domain for domain in domains}
        self.held_out_ = {}
        for index in proof_members(self.members_):
            digest = self.members_[index].digest
            if digest in domains_by_digest:
                self.held_out_[digest] = transform(self._draw(domains_by_digest[digest]).held_out[:limit])
            else:
                self.held_out_[digest] = earlier[digest]

    def _held_out_units(self) -> tuple[Float64, npt.NDArray[np.int64]]:
        """All held-out vectors (n, d), and the index of the member that each belongs to (n,)."""
        indices = {member.digest: index for index, member in enumerate(self.members_)}
        members = np.repeat([indices[digest] for digest in self.held_out_], list(map(len, self.held_out_.values())))
        return np.concatenate(list(self.held_out_.values())), members

    def _arrays_for_updates(self) -> Arrays:
        """The age and the held-out vectors as arrays of a state."""
        return {
            "age": self.age_.array,
            "held_out": np.concatenate(list(self.held_out_.values())),
            "held_out_units": np.array([len(vectors) for vectors in self.held_out_.values()], dtype=np.int64),
        }

    def _restore_age(self, arrays: Arrays) -> None:
        self.age_ = Age(*map(int, self._array(arrays, "age", np.int64, (3,))))

    def _restore_held_out(self, arrays: Arrays, dimensions: int) -> None:
        digests = [self.members_[index].digest for index in proof_members(self.members_)]
        counts = self._array(arrays, "held_out_units", np.int64, (len(digests),))
        units = self._floats(arrays, "held_out", int(counts.sum()), dimensions)
        self.held_out_ = dict(zip(digests, np.split(units, np.cumsum(counts)[:-1]), strict=True))
