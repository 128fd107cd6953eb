"""Prefix tuning: trained keys and values before every text."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from registry.spec.structures.structure import SOFTMAX, Structure


class PrefixConfig(Structure):
    """Prefix tuning (Li & Liang, ACL 2021): keys and values of `length` virtual tokens before every text.

    They are stored as PEFT's `prompt_embeddings`, layer by layer, keys before values.
    """

    method: Literal["prefix"] = "prefix"
    length: int = Field(ge=1, le=4096)

    no_exact_mixture: ClassVar[str | None] = SOFTMAX

    @property
    def prefix_length(self) -> int:
        """The number of virtual tokens."""
        return self.length
