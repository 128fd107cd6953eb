"""An adapter that can be loaded: what it is, and how its tensors are read when they are wanted.

The one record for it: verbs score one, mixing methods read them as ingredients, the engine keeps their tensors ready.
Knows no database and no files: `registry.stored_files` makes them of what is stored.
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
    """Where an adapter lies in a store: the blob of its weights, and the base model's fingerprint in its digest."""

    blob: str
    fingerprint: str


@dataclass(frozen=True)
class LoadableAdapter:
    """An adapter by its digest; two of one digest and configuration are equal, however they are read.

    `size_bytes` is the size of its tensors, for which a memory budget keeps room; 0 where nobody knows it before.
    `stored` is where other processes over the same store find it, None for what is in this one's memory alone.
    """

    digest: str
    config: AdapterConfig
    load: Load = field(compare=False, repr=False)
    size_bytes: int = field(default=0, compare=False)
    stored: Stored | None = field(default=None, compare=False)
