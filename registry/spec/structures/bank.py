"""Banks of experts (AdaMix): several copies of the projections of one adapter."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from registry.spec.structures.bottleneck import BottleneckConfig
from registry.spec.structures.lora import LoraConfig
from registry.spec.structures.structure import HeadConfig, Structure
from registry.spec.structures.union import UnionConfig


class BankConfig(Structure):
    """A bank of AdaMix (Wang et al., EMNLP 2022): `experts` copies of each projection of `expert`.

    Of the projections that `share` names (up: LoRA's B; down: A) there is one copy, as of the head that an expert may
    have for a task. Trained by random routing; what is served is its merge, the mean of the experts.
    """

    method: Literal["adamix"] = "adamix"
    expert: Annotated[BottleneckConfig | LoraConfig | UnionConfig, Field(discriminator="method")]
    experts: int = Field(default=4, ge=2, le=64)
    share: Literal["up", "down", "none"] = "up"

    @model_validator(mode="after")
    def _experts_can_be_copied(self) -> Self:
        copied = [component for component in self.expert.components if component.projections]
        uncopied = [component for component in self.expert.components if component not in copied]
        if len(copied) != 1 or any(component.head is None for component in uncopied):
            raise ValueError("the experts of a bank are bottlenecks or LoRAs, with or without a head")
        if self.expert.prunings():
            raise ValueError("the experts of a bank are not pruned")
        return self

    def identity(self) -> dict[str, Any]:
        """The fields that the adapter's digest includes, with those of the expert."""
        return {**super().identity(), "expert": self.expert.identity()}

    @property
    def copied(self) -> tuple[str, ...]:
        """Names of the projections that have several copies, as the last component of their path."""
        return {"up": self.sides[:1], "down": self.sides[1:], "none": self.sides}[self.share]

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the down- and the up-projection of an expert, as the last component of their path."""
        return next(component.projections for component in self.expert.components if component.projections)

    @property
    def merged(self) -> Structure:
        """The structure of one expert."""
        return self.expert

    @property
    def head(self) -> HeadConfig | None:
        """The head that the experts share."""
        return self.expert.head

    @property
    def takes_head(self) -> bool:
        """Return True if a head can be put beside an expert."""
        return self.expert.takes_head

    @property
    def described(self) -> str:
        """The bank with its number of experts."""
        return f"bank of {self.experts} experts"

    @property
    def not_served(self) -> str | None:
        """The reason that a bank is not served: a forward pass is that of one route, or costs more than its merge's."""
        return (
            f"is a {self.described} (AdaMix), which is not served but its merge is: cook a soup from a recipe of it "
            "alone and ask for that"
        )

    def start_named(self, init: str) -> str:
        """The initialisation of its experts."""
        return self.expert.start_named(init)
