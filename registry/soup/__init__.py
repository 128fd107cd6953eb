"""Mixing methods, one per file, each with its formula and paper. `cook` plans with `check` before it reads a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from registry.soup import average
from registry.soup.compat import Part
from registry.spec import Mixing


@dataclass(frozen=True)
class MixingMethod:
    """One way of mixing: `check` lists every reason against it, `mix` reads ingredients one by one."""

    name: str
    paper: str
    formula: str
    check: Callable[[Sequence[Part], Mixing], list[str]]
    mix: Callable[[Sequence[tuple[Part, Callable[[], Mapping[str, Tensor]]]], Mixing], dict[str, Tensor]]


MIXINGS: dict[str, MixingMethod] = {
    "average": MixingMethod(
        name="average",
        paper="AdapterSoup, Chronopoulou et al., Findings of EACL 2023, section 2",
        formula="theta = sum_i w_i theta_i, then U and b_U times scale",
        check=average.check,
        mix=average.mix,
    ),
}
