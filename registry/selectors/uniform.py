"""`uniform`: every adapter of the pool with equal weight (AdapterSoup, section 2: l = k). It looks at no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from registry.errors import InvalidParameter
from registry.progress import Progress, Steps
from registry.selectors.contract import Arrays, Domain, Floats, Selector, ordered_domains
from registry.selectors.ranking import Evidence, Member, RankedCandidates, Ranking, split_excluded
from registry.spec import SelectOptions, UniformSpec


class UniformSelector(Selector[UniformSpec]):
    """Chooses all members, without a cap; learned: `members_`, `report_`."""

    kind: ClassVar[str] = "uniform"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Store the members without reading their vectors. Raises InvalidParameter for an empty pool."""
        self.members_: tuple[Member, ...] = tuple(domain.member for domain in ordered_domains(domains))
        self.report_: dict[str, Any] = {"domains": len(self.members_), "held_out_accuracy": None, "warnings": []}
        Steps(progress, 1).step("members counted")
        return self

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """All members that are not excluded, by label. Raises InvalidParameter for `single`, as nothing is ranked."""
        if options.single:
            raise InvalidParameter(
                "'single' takes the best match, and uniform ranks nothing: use gmm or cosine.", param="single"
            )
        order, excluded = split_excluded(self.members_, exclude)
        passes = np.ones(len(order), dtype=bool)
        return Ranking(
            ranked=RankedCandidates(self.members_, order, passes / max(1, len(order)), passes),
            excluded=excluded,
            options=options,
            capped=False,
            evidence=Evidence(len(vectors)),
        )

    def _arrays(self) -> Arrays:
        return {}

    def _restore(self, arrays: Arrays) -> None:
        pass
