"""An adapter that can be loaded: its digest, its configuration, and a function that reads its tensors.

Verbs score one, mixing methods read them as ingredients, the engine caches their tensors. Knows no database and no
files: `registry.stored.adapters` makes them of stored adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from registry.spec import AdapterConfig

Tensors = Mapping[str, Tensor]
Load = Callable[[], Tensors]


@dataclass(frozen=True)
class Stored:
    """The location of an adapter in a store: the blob of its weights, and its base model's fingerprint."""

    blob: str
    fingerprint: str


@dataclass(frozen=True)
class LoadableAdapter:
    """An adapter by its digest; two of one digest and configuration are equal, however they are read.

    `size_bytes` is its size in memory, which the engine sets for its budgets, and 0 before.
    `stored` is its location for other processes over the same store, None where it is in this one's memory alone.
    """

    digest: str
    config: AdapterConfig
    load: Load = field(compare=False, repr=False)
    size_bytes: int = field(default=0, compare=False)
    stored: Stored | None = field(default=None, compare=False)
