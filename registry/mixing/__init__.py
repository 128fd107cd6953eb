"""Mixing methods, one per file, each with its formula and paper; `cook` calls `check` before it mixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from registry.mixing import (
    align,
    average,
    concat,
    dare,
    entrywise,
    fisher,
    merge,
    recompress,
    regmean,
    slerp,
    task_arithmetic,
    ties,
)
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, BaseShape, Mixing, StatisticKind


@dataclass(frozen=True)
class MixingMethod:
    """The functions of one mixing method, each of which takes the ingredients and the method's member of `Mixing`.

    - `check` lists every reason against mixing the ingredients.
    - `mix` reads the ingredients and computes the soup's tensors.
    - `result` is the soup's configuration, by default that of the first ingredient.
    - `too_wide` lists reasons against the number of ingredients or a soup wider than `max_width`; the lowest-ranked
      ingredients are dropped until it is empty. Further ingredients never make it empty.
    - `resolved` is the mixing as the recipe stores it, with defaults filled in.
    - `statistic_kind` is the kind of statistic that `mix` reads of each of several ingredients beside its tensors.

    With `by_site` the report lists residuals by site. Methods `by_lapack` give the same bytes on one machine only. With
    `init_advice` a refusal for initialisations alone says that the request may vouch for them.
    """

    check: Callable[[Sequence[SoupIngredient], Any], list[str]]
    mix: Callable[[Sequence[SoupIngredient], Any], dict[str, Tensor]]
    result: Callable[[Sequence[SoupIngredient], Any], AdapterConfig] = lambda ingredients, _: ingredients[0].config
    too_wide: Callable[[Sequence[SoupIngredient], Any, int], list[str]] = lambda _ingredients, _mixing, _max_width: []
    by_site: bool = False
    by_lapack: bool = False
    init_advice: bool = False
    resolved: Callable[[Sequence[SoupIngredient], Any, BaseShape], Mixing] = lambda _ingredients, mixing, _shape: mixing
    statistic_kind: Callable[[Any], StatisticKind | None] = lambda _mixing: None


MIXINGS = {
    "average": MixingMethod(average.check, average.mix, average.result, init_advice=True),
    "concat": MixingMethod(concat.check, concat.mix, concat.result, too_wide=concat.too_wide),
    "recompress": MixingMethod(
        recompress.check,
        recompress.mix,
        recompress.result,
        too_wide=recompress.too_wide,
        by_site=True,
        by_lapack=True,
        statistic_kind=recompress.statistic_kind,
    ),
    "align": MixingMethod(align.check, align.mix, align.result, by_lapack=True),
    "ties": MixingMethod(entrywise.check, ties.mix, init_advice=True),
    "dare": MixingMethod(entrywise.check, dare.mix, init_advice=True),
    "slerp": MixingMethod(entrywise.check, slerp.mix, too_wide=slerp.too_many, init_advice=True),
    "task_arithmetic": MixingMethod(
        task_arithmetic.check,
        task_arithmetic.mix,
        task_arithmetic.result,
        too_wide=task_arithmetic.too_wide,
        resolved=task_arithmetic.resolved,
    ),
    "fisher": MixingMethod(fisher.check, fisher.mix, statistic_kind=lambda _: "fisher"),
    "regmean": MixingMethod(
        regmean.check,
        regmean.mix,
        regmean.result,
        too_wide=regmean.too_wide,
        by_lapack=True,
        statistic_kind=lambda _: "inputs",
    ),
    "merge": MixingMethod(merge.check, merge.mix, merge.result),
}
"""The mixing methods by the `method` of a `Mixing`.

A new one: its value, a member of the union in registry/spec/mixing.py, exported by registry/spec; a file here; its row
above; for a rule on single entries also a member of `Entrywise`. Also a flag for each option and a word in the help of
`--mixing` (adaptersoup/cli/verbs/cook.py), tests/registry/mixing/test_contract.py, docs/explanation/mixing.md, the
glossary and `make openapi`.
"""
