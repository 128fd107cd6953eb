"""RegMean (Jin et al., ICLR 2023, https://arxiv.org/abs/2212.09849): outputs as near as can be to the ingredients'.

Of a projection W with inputs x the one that makes sum_i w_i E_i |W x - W_i x|^2 smallest, each ingredient over what its
own projection reads on the sample it was pushed with:

    W^T = (sum_i w_i G_i)^-1 sum_i w_i G_i W_i^T,   G_i = E_i[x x^T]

with all that is off the diagonal of G_i multiplied by `off_diagonal`, as the paper does, and a millionth of the mean
diagonal added to it, which leaves an input that nobody uses with the average. Everything but projections is averaged. A
LoRA's update s B A is such a matrix itself, and of updates the solution is again one of all ranks side by side:

    B = [s_i B_i],   A_i' = w_i A_i G_i (sum_j w_j G_j)^-1

G_i is computed once and read from a blob that the recipe names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.lora import LORA_A, PREFIX
from registry.adapters.masks import projections
from registry.adapters.mixture import everywhere
from registry.adapters.moments import unpacked
from registry.adapters.weights import DTYPES, scale_output
from registry.errors import Internal
from registry.mixing import average, concat, entrywise
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, by_digest, layer_reasons, not_joinable_reasons, statistic_reasons
from registry.spec import AdapterConfig, AverageMixing, ConcatMixing, LoraConfig, RegMeanMixing
from registry.tensor_file import canonical_order

RIDGE = 1e-6
"""Of the mean diagonal: what is added to every G_i."""


def check(parts: Sequence[SoupIngredient], mixing: RegMeanMixing) -> list[str]:
    """Every reason why these cannot be mixed so; empty when they can. No tensor is read."""
    if parts[0].config.is_update:
        reasons = concat.check(parts, ConcatMixing(scale=mixing.scale)) + layer_reasons(parts)
        reasons = reasons or _module_reasons(parts)
    else:
        reasons = entrywise.check(parts, mixing) or not_joinable_reasons(parts, "RegMean")
    return reasons + (statistic_reasons(parts, "RegMean") if len(parts) > 1 else [])


def _module_reasons(parts: Sequence[SoupIngredient]) -> list[str]:
    """What a module that one of them leaves alone reads there was not looked at."""
    first = parts[0].config.widths().keys()
    other = next((part for part in parts if part.config.widths().keys() != first), None)
    if other is None:
        return []
    return [f"{parts[0].ref} and {other.ref} are on different modules, and RegMean needs the same: mix by 'concat'."]


def too_wide(parts: Sequence[SoupIngredient], mixing: RegMeanMixing, max_width: int) -> list[str]:
    """One sentence where LoRAs would be wider than `max_width` together."""
    joined = ConcatMixing(scale=mixing.scale)
    return concat.too_wide(parts, joined, max_width) if parts[0].config.is_update else []


def result(parts: Sequence[SoupIngredient], _mixing: RegMeanMixing) -> AdapterConfig:
    """The soup's structure: that of each bottleneck; LoRAs' ranks added up."""
    if len(parts) == 1 or not parts[0].config.is_update:
        return parts[0].config
    return concat.joined(parts, concat.added_up(parts))


def mix(parts: Sequence[SoupIngredient], mixing: RegMeanMixing) -> dict[str, Tensor]:
    """The soup's tensors, bottlenecks in their dtype; all ingredients are in memory at once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if len(parts) == 1:
        return average.mix(parts, AverageMixing(scale=mixing.scale))
    ordered = by_digest(parts)
    moments = _Moments(ordered, float(mixing.off_diagonal))
    loaded = [cast_finite(part.load(), torch.float32) for part in ordered]
    if parts[0].config.is_update:
        return _updates(ordered, loaded, moments, float(mixing.scale))
    weights = [torch.tensor(float(part.weight), dtype=torch.float32) for part in ordered]
    fitted = {name for names in projections(ordered[0].config, loaded[0]).values() for name in names}
    found = {}
    for name in canonical_order(loaded[0]):
        values = [one[name] for one in loaded]
        found[name] = (
            moments.joined(name, values).to(torch.float32)
            if name in fitted
            else entrywise.weighted_sum(values, weights)
        )
    if mixing.scale != "1":
        found = scale_output(found, ordered[0].config, float(mixing.scale))
    return cast_finite(found, DTYPES[average.result_dtype(parts)])


def _updates(
    ordered: Sequence[SoupIngredient], loaded: Sequence[Mapping[str, Tensor]], moments: _Moments, scale: float
) -> dict[str, Tensor]:
    """LoRAs side by side with the A of each made to fit."""
    made = [dict(one) for one in loaded]
    config = ordered[0].config
    assert isinstance(config, LoraConfig)  # `is_update`
    for path in config.modules():
        name = PREFIX + path + LORA_A
        for one, value in zip(made, moments.apart(name, [one[name] for one in loaded]), strict=True):
            one[name] = value
    join = entry_of(config).join
    if join is None:
        raise Internal(f"Adapters of method {config.method!r} were to be put side by side.")
    factor = everywhere(scale)
    return cast_finite(join([part.config for part in ordered], made, [factor] * len(made)), torch.float32)


class _Moments:
    """The second moments of several ingredients, with their weights; each of their matrices is unpacked when needed."""

    def __init__(self, parts: Sequence[SoupIngredient], off_diagonal: float) -> None:
        self._known = [part.measured() for part in parts]
        self._weights = [float(part.weight) for part in parts]
        self._off_diagonal = off_diagonal

    def joined(self, name: str, values: Sequence[Tensor]) -> Tensor:
        """The solution for W (outputs, inputs) of a projection, float64."""
        left, right = self._sides(name, values)
        solved: Tensor = torch.linalg.solve(left, torch.stack(right).sum(0))
        return solved.T

    def apart(self, name: str, values: Sequence[Tensor]) -> list[Tensor]:
        """What becomes of each LoRA's A (rank, inputs), float64: parts of one solution."""
        left, right = self._sides(name, values)
        solved = torch.linalg.solve(left, torch.cat(right, 1))
        return [part.T for part in solved.split([side.shape[1] for side in right], 1)]

    def _sides(self, name: str, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """sum_i w_i G_i (inputs, inputs), and each w_i G_i W_i^T; G_i is the identity where nobody reads anything."""
        size = values[0].shape[1]
        moments = [
            weight * unpacked(known[name], size) for weight, known in zip(self._weights, self._known, strict=True)
        ]
        mean = float(torch.stack([one.trace() for one in moments]).sum()) / size
        shared = RIDGE * mean if mean > 0 else 1.0
        for one, weight in zip(moments, self._weights, strict=True):
            diagonal = one.diagonal().clone()
            one *= self._off_diagonal
            one.diagonal().copy_(diagonal + weight * shared)
        right = [one @ value.double().T for one, value in zip(moments, values, strict=True)]
        return torch.stack(moments).sum(0), right
