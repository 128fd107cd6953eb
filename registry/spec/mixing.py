"""Mixing methods, each with its options: how a recipe makes one adapter of several."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from registry.spec.decimals import UpToOne, canonical_decimal
from registry.spec.frozen import Frozen
from registry.spec.structures.pruned import MaskRule


def _not_nothing(scale: str) -> str:
    if scale == "0":
        raise ValueError("must not be 0: nothing of any adapter would be left, which is the base model")
    return scale


DrawnInit = Literal["near_identity", "linear", "zero_up"]
"""The initialisation of a bottleneck that is drawn by a seed."""
INIT_SEEDS = range(2**63)
"""The seeds that a recipe can name."""


Scale = Annotated[
    str,
    BeforeValidator(canonical_decimal),
    AfterValidator(_not_nothing),
    WithJsonSchema({"type": ["number", "string"]}),
]


def not_set(value: object) -> bool:
    """Return True for None: fields added later are only in recipes that set them, so that digests do not change."""
    return value is None


class _Method(Frozen):
    """A mixing method that a recipe can have."""

    keeps_init: ClassVar[bool] = True
    """True if the soup has the initialisation of its ingredients, which it cannot with tensors of other shapes."""
    widens: ClassVar[bool] = False
    """True if the soup can be wider than each ingredient, so that a request's `max_width` bounds it."""


class _WithoutMasks(_Method):
    """A mixing method whose soups have no masks."""

    masks: ClassVar[None] = None


class _OfAnyInit(_WithoutMasks):
    """A mixing method that does not depend on initialisations."""

    assume_same_init: ClassVar[bool] = False


class AverageMixing(_Method):
    """The weighted average of tensors, sum w_i theta_i (AdapterSoup, section 2).

    `scale` multiplies the up-projections (U and b_U). `assume_same_init` vouches for initialisations that are unknown
    or differ; it stays in the recipe and card. `masks` says which mask the soup of pruned adapters has: without it,
    `union`.
    """

    method: Literal["average"] = "average"
    scale: Scale = "1"
    assume_same_init: bool = False
    masks: MaskRule | None = Field(default=None, exclude_if=not_set)


class ConcatMixing(_OfAnyInit):
    """The exact mixture: an adapter whose output is the weighted sum of its ingredients'.

    Bottlenecks or ranks add up. Needs one structure and no common initialisation; `scale` as for `average`.
    """

    method: Literal["concat"] = "concat"
    scale: Scale = "1"

    keeps_init: ClassVar[bool] = False
    widens: ClassVar[bool] = True


class RecompressMixing(_OfAnyInit):
    """The exact mixture, reduced to a smaller width: the neurons or ranks of the ingredients that explain most of it.

    Has the requirements of `concat`. `width` is the bottleneck or the rank of every module, by default the largest of
    an ingredient there. `seed` draws the probes to choose neurons by. `scale` as for `average`. With `by_inputs` a
    LoRA's update is the nearest on the inputs of its modules, by their second moments on the ingredients' samples.
    """

    method: Literal["recompress"] = "recompress"
    scale: Scale = "1"
    width: int | None = Field(default=None, ge=1, le=65536, exclude_if=not_set)
    seed: int = Field(default=0, ge=0, lt=2**32)
    by_inputs: Literal[True] | None = Field(default=None, exclude_if=not_set)

    keeps_init: ClassVar[bool] = False
    widens: ClassVar[bool] = True


class AlignMixing(_OfAnyInit):
    """The average of bottlenecks whose neurons have been matched: no common initialisation is needed.

    `scale` as for `average`.
    """

    method: Literal["align"] = "align"
    scale: Scale = "1"

    keeps_init: ClassVar[bool] = False


class TiesMixing(_WithoutMasks):
    """TIES (Yadav et al., NeurIPS 2023): entries trimmed to the largest, a sign elected, those of that sign averaged.

    `density` is the share of each projection's entries that is kept, by default all (the paper trims to 0.2). `scale`
    and `assume_same_init` as for `average`.
    """

    method: Literal["ties"] = "ties"
    scale: Scale = "1"
    density: UpToOne = "1"
    assume_same_init: bool = False


class DareMixing(_WithoutMasks):
    """DARE (Yu et al., ICML 2024): entries dropped at random by `seed`, the others rescaled, then averaged.

    `density` is the share of entries that is kept. `scale` and `assume_same_init` as for `average`.
    """

    method: Literal["dare"] = "dare"
    scale: Scale = "1"
    density: UpToOne = "0.9"
    seed: int = Field(default=0, ge=0, lt=2**32)
    assume_same_init: bool = False


class SlerpMixing(_WithoutMasks):
    """Spherical interpolation of two adapters' projections. `scale` and `assume_same_init` as for `average`."""

    method: Literal["slerp"] = "slerp"
    scale: Scale = "1"
    assume_same_init: bool = False


class TaskArithmeticMixing(_OfAnyInit):
    """Task arithmetic (Ilharco et al., ICLR 2023): the initialisation, plus `scale` times the weighted mean of the
    changes.

    `scale` is the sum of the paper's coefficients: 1 gives the average of bottlenecks, values below 0 subtract the
    changes. Bottlenecks must share an initialisation that `init` and `init_seed` draw. It is found by its hash, and
    recorded in the recipe. The change of a LoRA is its update, whatever its initialisation, so for LoRAs the soup is
    that of `concat`.
    """

    method: Literal["task_arithmetic"] = "task_arithmetic"
    scale: Scale = "1"
    init: DrawnInit | None = Field(default=None, exclude_if=not_set)
    init_seed: int | None = Field(default=None, ge=0, lt=INIT_SEEDS.stop, exclude_if=not_set)

    widens: ClassVar[bool] = True  # of LoRAs ranks add up


class FisherMixing(_WithoutMasks):
    """Fisher merging (Matena and Raffel, NeurIPS 2022): every value weighed by its diagonal Fisher information.

    The information is computed once for each ingredient, on the sample it was pushed with, and named in the recipe.
    `scale` and `assume_same_init` as for `average`.
    """

    method: Literal["fisher"] = "fisher"
    scale: Scale = "1"
    assume_same_init: bool = False


class RegMeanMixing(_WithoutMasks):
    """RegMean (Jin et al., ICLR 2023): projections whose outputs are nearest to the ingredients' on their own inputs.

    The second moments of the inputs are computed once for each ingredient, on the sample it was pushed with, and named
    in the recipe. Values off their diagonals are multiplied by `off_diagonal`. `scale` and `assume_same_init` as for
    `average`. LoRAs need no common initialisation: their updates are fitted, and ranks add up.
    """

    method: Literal["regmean"] = "regmean"
    scale: Scale = "1"
    off_diagonal: UpToOne = "0.9"
    assume_same_init: bool = False

    widens: ClassVar[bool] = True  # of LoRAs ranks add up


class MergeMixing(_OfAnyInit):
    """The adapter of a bank of experts: the mean of their weights and biases (AdaMix, section 3.3).

    Has one ingredient, the bank.
    """

    method: Literal["merge"] = "merge"

    scale: ClassVar[None] = None


class AutoMixing(Frozen):
    """`average` where the paper averages, else `concat`; the recipe records the chosen method.

    Bottlenecks are averaged if structure, scale and initialisation agree (or `assume_same_init` vouches for it), and
    concatenated if only the structure agrees. LoRAs are concatenated, and a single bank is merged.
    """

    method: Literal["auto"] = "auto"
    scale: Scale = "1"
    assume_same_init: bool = False

    widens: ClassVar[bool] = True


_Settled = (
    AverageMixing
    | ConcatMixing
    | RecompressMixing
    | AlignMixing
    | TiesMixing
    | DareMixing
    | SlerpMixing
    | TaskArithmeticMixing
    | FisherMixing
    | RegMeanMixing
    | MergeMixing
)
Mixing = Annotated[_Settled, Field(discriminator="method")]


def _auto_by_default(value: object) -> object:
    """Set the method of a mixing that names none."""
    return {"method": "auto", **value} if isinstance(value, dict) else value


MixingRequest = Annotated[
    Annotated[AutoMixing | _Settled, Field(discriminator="method")],
    BeforeValidator(_auto_by_default),
]
