"""`uniform`: every adapter of the pool with equal weight (AdapterSoup, section 2: l = k). It looks at no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from registry.errors import InvalidParameter
from registry.progress import Progress, Steps
from registry.selectors.contract import Arrays, Domain, Floats, Selector, ordered_domains
from registry.selectors.ranking import Evidence, Member, Ranked, Ranking, split_excluded
from registry.spec import SelectOptions, UniformSpec


class UniformSelector(Selector[UniformSpec]):
    """All members, always; learned: `members_`, `report_`. The cap on ingredients does not apply to it."""

    kind: ClassVar[str] = "uniform"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Remember the members; their vectors are not looked at. Raises InvalidParameter for an empty pool."""
        self.members_: tuple[Member, ...] = tuple(domain.member for domain in ordered_domains(domains))
        self.report_: dict[str, Any] = {"domains": len(self.members_), "held_out_accuracy": None, "warnings": []}
        Steps(progress, 1).step("members counted")
        return self

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Every member that is not excluded, by label. Raises InvalidParameter for `single`: there is no ranking."""
        if options.single:
            raise InvalidParameter(
                "'single' takes the best match, and uniform ranks nothing: use gmm or cosine.", param="single"
            )
        kept, out = split_excluded(self.members_, exclude)
        order = np.array(kept, dtype=np.int64)
        everybody = np.ones(len(kept), dtype=bool)
        return Ranking(
            ranked=Ranked(self.members_, order, everybody / max(1, len(kept)), everybody),
            excluded=out,
            options=options,
            capped=False,
            evidence=Evidence(len(vectors)),
        )

    def _arrays(self) -> Arrays:
        return {}  # the members are all there is

    def _restore(self, arrays: Arrays) -> None:
        pass
