"""The union of all adapter configurations, discriminated by `method`.

The adapter's digest includes `identity()`. Names and shapes of tensors are defined in `registry.adapters`.
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

if TYPE_CHECKING:  # code uses the interface of `Structure`, and never checks which of these it has
    AdapterConfig = Structure
else:
    AdapterConfig = Annotated[
        BottleneckConfig | LoraConfig | PrefixConfig | HeadConfig | UnionConfig | FusionConfig | BankConfig,
        Field(discriminator="method"),
    ]
