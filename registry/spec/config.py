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
