"""Bottleneck adapters: down-projection, activation and up-projection, at the positions of four papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from registry.spec.structures.pruned import Pruned
from registry.spec.structures.structure import Prunable


class BottleneckConfig(Prunable):
    """Structure of a bottleneck adapter: where it sits, how wide it is, and what it computes.

    `scale` multiplies the up-projection's output. With `input="residual"` the adapter reads the residual stream.
    Bapna-Firat and Pfeiffer read it after the block's residual add, and so act on the block's output; parallel reads it
    before the norm of the feed-forward module. `trained_norms=False` is a Houlsby adapter that leaves the base's norms
    alone, as AdapterHub's do.
    """

    method: Literal["bottleneck"] = "bottleneck"
    structure: Literal["houlsby", "pfeiffer", "bapna_firat", "parallel"]
    bottleneck: int = Field(ge=1, le=65536)
    activation: Literal["relu", "gelu", "swish"]
    scale: float = 1.0
    input: Literal["module", "residual"] = "module"
    layer_norm_eps: float = Field(default=1e-5, gt=0, lt=1)
    trained_norms: bool = True
    pruned: Pruned | None = None

    projections: ClassVar[tuple[str, ...]] = ("down", "up")
    scaled_tensors: ClassVar[tuple[str, ...]] = (".up.weight", ".up.bias")
    no_exact_mixture: ClassVar[str | None] = None
    joinable: ClassVar[bool] = True
    foldable: ClassVar[frozenset[str]] = frozenset({"bottleneck", "scale", "layer_norm_eps", "pruned"})

    @model_validator(mode="after")
    def _options_fit_the_structure(self) -> Self:
        if self.input == "residual" and self.structure == "houlsby":
            raise ValueError("input='residual' is no option of structure 'houlsby', which acts before both adds")
        if not self.trained_norms and self.structure != "houlsby":
            raise ValueError("trained_norms is an option of structure 'houlsby' only: no other trains norms")
        return self

    def identity(self) -> dict[str, Any]:
        """The fields that the adapter's digest includes; `trained_norms`, added later, only if it is not the
        default.
        """
        values = super().identity()
        if self.trained_norms:
            del values["trained_norms"]
        return values

    @property
    def kind(self) -> str:
        """The structure by its paper's name."""
        return self.structure

    def widths(self) -> dict[str, int]:
        """The bottleneck, which is the same at all sites."""
        return {"": self.bottleneck}

    @property
    def folded(self) -> frozenset[str]:
        """The foldable fields, without the epsilon of a LayerNorm that belongs to the adapter."""
        return self.foldable - {"layer_norm_eps"} if self.structure == "bapna_firat" else self.foldable

    @property
    def same_tensors(self) -> tuple[str, str] | None:
        """Houlsby's trained LayerNorms, which replace the base's and so exist once."""
        return ("trained LayerNorms", ".base_norm.") if self.structure == "houlsby" and self.trained_norms else None

    def joined(self, widths: Mapping[str, int]) -> BottleneckConfig:
        """The configuration with the sum of the bottlenecks, and scale and masks folded into the tensors."""
        return self.model_copy(update={"bottleneck": sum(widths.values()), "scale": 1.0, "pruned": None})

    def widened(self, factor: int) -> Self:
        """The bottleneck `factor` times as wide."""
        return type(self).model_validate({**self.model_dump(), "bottleneck": self.bottleneck * factor})
