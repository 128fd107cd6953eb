"""Mixing methods, one per file, each with its formula and paper. `cook` plans with `check` before it mixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from registry.soup import average, concat, merge
from registry.soup.compat import SoupPart
from registry.spec import AdapterConfig


@dataclass(frozen=True)
class MixingMethod:
    """One way of mixing, by its own member of `Mixing`.

    `check` lists every reason against it, `result` is the soup's configuration, `mix` reads the ingredients.
    """

    name: str
    paper: str
    formula: str
    check: Callable[[Sequence[SoupPart], Any], list[str]]
    result: Callable[[Sequence[SoupPart], Any], AdapterConfig]
    mix: Callable[[Sequence[SoupPart], Any], dict[str, Tensor]]


MIXINGS: dict[str, MixingMethod] = {
    "average": MixingMethod(
        name="average",
        paper="AdapterSoup, Chronopoulou et al., Findings of EACL 2023, section 2",
        formula="theta = sum_i w_i theta_i, then U and b_U (LoRA: B) times scale",
        check=average.check,
        result=average.result,
        mix=average.mix,
    ),
    "concat": MixingMethod(
        name="concat",
        paper="block-diagonal form of the sum of the ingredients' updates, as `cat` in PEFT (Mangrulkar et al., 2022)",
        formula="f(x) = scale sum_i w_i f_i(x): widths or ranks side by side, weights folded into the up-projections",
        check=concat.check,
        result=concat.result,
        mix=concat.mix,
    ),
    "merge": MixingMethod(
        name="merge",
        paper="AdaMix, Wang et al., EMNLP 2022, section 3.3",
        formula="theta = 1/M sum_i theta_i over the M experts of one bank, in every projection",
        check=merge.check,
        result=merge.result,
        mix=merge.mix,
    ),
}
