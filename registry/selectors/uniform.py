"""`uniform`: every adapter of the pool with equal weight (AdapterSoup, section 2: l = k). It looks at no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from registry.errors import InvalidParameter
from registry.progress import Progress, Steps
from registry.selectors.contract import Domain, Selector, ordered_domains, pack_meta, unpack_meta
from registry.selectors.ranking import Candidate, Evidence, Member, Ranking, split_excluded
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
        self,
        vectors: npt.NDArray[np.floating[Any]] | None = None,
        *,
        options: SelectOptions = SelectOptions(),
        exclude: Mapping[str, str] = {},
    ) -> Ranking:
        """Every member that is not excluded, by label. Raises InvalidParameter for `single`: there is no ranking."""
        if options.single:
            raise InvalidParameter(
                "'single' takes the best match, and uniform ranks nothing: use gmm or cosine.", param="single"
            )
        kept, out = split_excluded(self.members_, exclude)
        ranked = [Candidate(member=self.members_[index], score=1 / len(kept)) for index in kept]
        return Ranking(
            ranked=ranked,
            excluded=out,
            options=options,
            capped=False,
            evidence=Evidence(
                units=0 if vectors is None else len(vectors),
                scores={candidate.member.domain: candidate.score for candidate in ranked},
            ),
        )

    def to_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """No arrays: the members are all there is."""
        return {}, pack_meta(self)

    @classmethod
    def from_state(cls, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> Self:  # noqa: ARG003
        """The selector `to_state` described; raises Internal if this is another thing."""
        members, report = unpack_meta(meta, cls.kind)
        selector = cls(UniformSpec.model_validate(meta["spec"]))
        selector.members_, selector.report_ = members, report
        return selector
