"""The variants that the claims compare: adapters as `soup train` makes them, and parts of the encoder itself.

Called by `cells` and `verdicts`. Variants of one family share a learning rate, chosen with the family's first variant.
`claims.toml` has the settings.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from registry.spec import Frozen, PruningScore

PLAN: dict[str, Any] = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
RATES: dict[str, list[float]] = PLAN["rates"]
"""The learning rates that each family chooses from."""


class Variant(Frozen):
    """One way of training. `spec` has fields of a `TrainingSpec`.

    `part` is a part of the encoder that is trained instead, or the library that trains an adapter of this spec.
    """

    family: str
    spec: dict[str, Any] = Field(default_factory=dict)
    part: Literal["all", "top", "norms", "peft", "adapters"] | None = None
    layers: int = 1
    """How many of the last layers `part="top"` trains."""
    scale: float = 1.0
    """Factor on the adapter's initial projections."""
    schedule: Literal["short", "long", "twice", "few", "more", "more_long"] = "short"
    measures: Literal["spans", "routes"] | None = None
    """Further scores: without layers' adapters, or of a bank's random routes."""


def _bottleneck(structure: str, m: int, **fields: Any) -> dict[str, Any]:
    return {"adapter": {"structure": structure, "bottleneck": m}, **fields}


def _pruned(spec: dict[str, Any], sparsity: float, score: PruningScore = "snip", **options: Any) -> dict[str, Any]:
    return {**spec, "pruning": {"score": score, "sparsity": sparsity, **options}}


def _bank(spec: dict[str, Any], *, family: str = "adamix", schedule: Any = "long", **options: Any) -> Variant:
    return Variant(family=family, spec={**spec, "adamix": options}, schedule=schedule, measures="routes")


_DENSE, _SINGLE = _bottleneck("houlsby", 64), _bottleneck("pfeiffer", 16)
_FIXED_NORMS = {"adapter": {**_DENSE["adapter"], "trained_norms": False}}
"""Houlsby's adapter as the library `adapters` has it."""
_LORA_ZERO = {"adapter": {"method": "lora", "rank": 8}}
_LORA = {**_LORA_ZERO, "init": "small_b"}
_STRUCTURES = {
    "pfeiffer": _bottleneck("pfeiffer", 64),
    "lora": _LORA,
    "parallel": _bottleneck("parallel", 64, init="near_identity"),
    "mam": {"adapter": {"method": "mam"}, "init": "near_identity"},
}
"""Structures that SparseAdapter prunes too; with updates that start at zero SNIP could not tell weights apart."""

VARIANTS = {
    "houlsby_64": Variant(family="houlsby", spec=_DENSE, measures="spans"),
    **{f"houlsby_{m}": Variant(family="houlsby", spec=_bottleneck("houlsby", m)) for m in (8, 256)},
    **{f"start_{std:g}": Variant(family="houlsby", spec=_DENSE, scale=std / 1e-2) for std in (1e-4, 1e-3, 0.1, 1.0)},
    "full": Variant(family="full", part="all"),
    **{f"top_{k}": Variant(family="top", part="top", layers=k) for k in (1, 2)},
    "norms": Variant(family="norms", part="norms"),
    **{f"snip_{s}": Variant(family="houlsby", spec=_pruned(_DENSE, s / 100)) for s in (20, 40, 60, 80, 90)},
    "random_80": Variant(family="houlsby", spec=_pruned(_DENSE, 0.8, "random")),
    "magnitude_80": Variant(family="houlsby", spec=_pruned(_DENSE, 0.8, "magnitude")),
    "erdos_renyi_80": Variant(family="houlsby", spec=_pruned(_DENSE, 0.8, "erdos_renyi")),
    "grasp_80": Variant(family="houlsby", spec=_pruned(_DENSE, 0.8, "grasp")),
    **{f"large_{w}": Variant(family="large", spec=_pruned(_DENSE, 1 - 1 / w, widen=w)) for w in (2, 4)},
    **{name: Variant(family=name, spec=spec) for name, spec in _STRUCTURES.items()},
    **{f"{name}_snip_40": Variant(family=name, spec=_pruned(spec, 0.4)) for name, spec in _STRUCTURES.items()},
    "lora_zero": Variant(family="lora", spec=_LORA_ZERO),
    "peft_lora": Variant(family="lora", spec=_LORA_ZERO, part="peft"),
    "houlsby_fixed_norms": Variant(family="houlsby", spec=_FIXED_NORMS),
    "adapters_houlsby": Variant(family="houlsby", spec=_FIXED_NORMS, part="adapters"),
    "adapters_pfeiffer": Variant(family="pfeiffer", spec=_STRUCTURES["pfeiffer"], part="adapters"),
    "single": Variant(family="single", spec=_SINGLE, schedule="long"),
    "single_twice": Variant(family="single", spec=_SINGLE, schedule="twice"),
    "full_long": Variant(family="full_long", part="all", schedule="long"),
    "adamix": _bank(_SINGLE),
    "adamix_no_consistency": _bank(_SINGLE, consistency="none"),
    "adamix_share_down": _bank(_SINGLE, share="down"),
    "adamix_share_none": _bank(_SINGLE, share="none"),
    "adamix_few": _bank(_SINGLE, schedule="few"),
    "adamix_share_none_few": _bank(_SINGLE, schedule="few", share="none"),
    **{f"adamix_{experts}_experts": _bank(_SINGLE, experts=experts) for experts in (2, 8)},
    "single_lora": Variant(family="single_lora", spec=_LORA, schedule="long"),
    "adamix_lora": _bank(_LORA, family="adamix_lora"),
}
MORE = (
    "houlsby_64",
    "houlsby_8",
    "full",
    "top_1",
    "top_2",
    "norms",
    "snip_40",
    "snip_80",
    "large_2",
    "single",
    "adamix",
)
"""Variants that are also trained with more examples, and `top_1`, with which the family of `top_2` chooses its rate."""
VARIANTS |= {
    f"{name}_more": VARIANTS[name].model_copy(
        update={
            "family": f"{VARIANTS[name].family}_more",
            "schedule": "more_long" if VARIANTS[name].schedule == "long" else "more",
            "measures": None,
        }
    )
    for name in MORE
}


def first_of(family: str) -> str:
    """The variant that the family's learning rate is chosen with."""
    return next(name for name, variant in VARIANTS.items() if variant.family == family)
