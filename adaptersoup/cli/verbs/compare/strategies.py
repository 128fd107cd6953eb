"""The strategies that `soup compare` compares, each with its request to the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from registry.spec import (
    CookRequest,
    CosineSpec,
    Effort,
    GmmSpec,
    PoolRequest,
    SampleSource,
    SelectOptions,
    UniformSpec,
)


@dataclass(frozen=True)
class Strategy:
    """A selector or an effort to cook with; `verify` lets the server abstain."""

    name: str
    selector: GmmSpec | CosineSpec | UniformSpec | None
    single: bool = False
    verify: bool = False
    effort: Effort | None = None

    def request(self, sample: SampleSource, pool: PoolRequest) -> CookRequest:
        """The cook request of this strategy for a sample."""
        options = SelectOptions(single=self.single)
        return CookRequest(
            sample=sample, selector=self.selector, options=options, pool=pool, verify=self.verify, effort=self.effort
        )


STRATEGIES = (
    Strategy("single, cosine", CosineSpec(), single=True),
    Strategy("soup, cosine", CosineSpec()),
    Strategy("single, gmm as in the paper", GmmSpec(mode="paper"), single=True),
    Strategy("soup, gmm as in the paper", GmmSpec(mode="paper")),
    Strategy("single, gmm", GmmSpec(), single=True),
    Strategy("soup, gmm", GmmSpec()),
    Strategy("uniform soup", UniformSpec()),
    Strategy("effort instant", None, verify=True, effort="instant"),
    Strategy("effort quick", None, verify=True, effort="quick"),
    Strategy("effort thorough", None, verify=True, effort="thorough"),
    Strategy("effort tune", None, verify=True, effort="tune"),
)


def strategies_of(names: Sequence[str]) -> tuple[Strategy, ...]:
    """The strategies with these names, or all without any; raises a usage error for an unknown name."""
    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise typer.BadParameter(f"--strategy {unknown[0]!r} is unknown; strategies are {'; '.join(by_name)}.")
    return tuple(by_name[name] for name in dict.fromkeys(names)) or STRATEGIES
