"""Mixing methods, one per file, each with its formula and paper. `cook` plans with `check` before it mixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from registry.soup import average, concat, merge, recompress
from registry.soup.compat import SoupPart
from registry.spec import AdapterConfig


@dataclass(frozen=True)
class MixingMethod:
    """One way of mixing, by its own member of `Mixing`.

    `check` lists every reason against it, `result` is the soup's configuration, `mix` reads the ingredients. Reports
    have the residual `by_site` where a method says so.
    """

    check: Callable[[Sequence[SoupPart], Any], list[str]]
    result: Callable[[Sequence[SoupPart], Any], AdapterConfig]
    mix: Callable[[Sequence[SoupPart], Any], dict[str, Tensor]]
    by_site: bool = False


MIXINGS = {
    "average": MixingMethod(average.check, average.result, average.mix),
    "concat": MixingMethod(concat.check, concat.result, concat.mix),
    "recompress": MixingMethod(recompress.check, recompress.result, recompress.mix, by_site=True),
    "merge": MixingMethod(merge.check, merge.result, merge.mix),
}
"""By the `method` of a `Mixing`."""
