"""The union of all structures of adapters, each member the whole configuration of one kind, told apart by `method`.

What is in `identity()` is in the adapter's digest. Tensors, their names and shapes are `registry.adapters`' affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from registry.spec.structures.bank import BankConfig
from registry.spec.structures.bottleneck import BottleneckConfig
from registry.spec.structures.fusion import FusionConfig
from registry.spec.structures.lora import LoraConfig
from registry.spec.structures.prefix import PrefixConfig
from registry.spec.structures.structure import HeadConfig, Structure
from registry.spec.structures.union import UnionConfig

if TYPE_CHECKING:  # code asks a configuration what it needs to know, and never which of these it is
    AdapterConfig = Structure
else:
    AdapterConfig = Annotated[
        BottleneckConfig | LoraConfig | PrefixConfig | HeadConfig | UnionConfig | FusionConfig | BankConfig,
        Field(discriminator="method"),
    ]


# The names by which these were asked before configurations answered for themselves: part of the frozen public surface.


def head_of(config: AdapterConfig) -> HeadConfig | None:
    """The head that an adapter answers with; `config.head`."""
    return config.head


def prefix_length(config: AdapterConfig) -> int:
    """How many positions of the context an adapter takes before every text; `config.prefix_length`."""
    return config.prefix_length


def is_language_model(config: AdapterConfig) -> bool:
    """Whether a causal base model with such an adapter is one; `config.is_language_model`."""
    return config.is_language_model
