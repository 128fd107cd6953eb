"""Large-Sparse: a wider adapter of as many parameters, most of its entries pruned (SparseAdapter, section 3.3).

Called by whoever describes a training (`training.spec`) and by benchmarks; torch-free.
"""

from __future__ import annotations

from pydantic import ValidationError

from registry.errors import InvalidParameter
from registry.spec import AdapterConfig
from registry.spec.wording import describe_error


def sparsity_of(factor: int) -> float:
    """The share to prune of an adapter `factor` times as wide, so that as many entries stay: 50 % of 2, 67 % of 3."""
    return 1.0 - 1.0 / _checked(factor)


def widened(config: AdapterConfig, factor: int) -> AdapterConfig:
    """The structure with its bottleneck, or the rank of every module, `factor` times as wide.

    A LoRA's alpha grows with it so that its scaling stays. Of a union the members that have a width are widened; pruned
    to `sparsity_of(factor)` the projections have as many entries as before. Raises InvalidParameter for an adapter
    without a width, a factor below 2, and a width beyond what there can be.
    """
    try:
        wide = config.widened(_checked(factor))
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        raise InvalidParameter(f"{factor} times as wide cannot be: {describe_error(found)}.", param="widen") from None
    if wide is None:
        raise InvalidParameter(
            f"A {config.method} adapter has no width: bottlenecks, LoRAs and unions of them have.", param="widen"
        )
    return wide


def _checked(factor: int) -> int:
    if factor < 2:
        raise InvalidParameter(
            f"Large-Sparse is at least twice as wide, and {factor} times were asked for.", param="widen"
        )
    return factor
