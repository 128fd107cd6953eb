"""Large-Sparse: a wider adapter of as many parameters, most of its entries pruned (SparseAdapter, section 3.3).

Called by `training.build` and benchmarks; imports no torch.
"""

from __future__ import annotations

from pydantic import ValidationError

from registry.errors import InvalidParameter
from registry.spec import AdapterConfig
from registry.spec.wording import describe_error


def sparsity_of(factor: int) -> float:
    """The share to prune of an adapter `factor` times as wide so that as many entries remain: 1/2 for 2, 2/3 for 3."""
    return 1.0 - 1.0 / _checked(factor)


def widened(config: AdapterConfig, factor: int) -> AdapterConfig:
    """Return the structure with its bottleneck, or the rank of each module, `factor` times as wide.

    A LoRA's alpha grows likewise, so that its scaling stays. In a union all members with a width are widened. Raises
    InvalidParameter for an adapter without a width, a factor below 2, and a width that is not allowed.
    """
    try:
        wide = config.widened(_checked(factor))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InvalidParameter(
            f"The adapter cannot be {factor} times as wide: {describe_error(problem)}.", param="widen"
        ) from None
    if wide is None:
        raise InvalidParameter(
            f"A {config.method} adapter has no width: bottlenecks, LoRAs and unions of them have.", param="widen"
        )
    return wide


def _checked(factor: int) -> int:
    if factor < 2:
        raise InvalidParameter(f"Large-Sparse is at least twice as wide, not {factor} times.", param="widen")
    return factor
