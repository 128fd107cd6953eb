"""Statistics of adapters: computed once from an adapter and its own sample, for mixing methods that need them.

They are stored, and named in recipes by the digest of their blob, so that a soup can be rebuilt by arithmetic alone.
The sample that a soup is cooked for is not used.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.names import Digest
from registry.spec.frozen import Frozen
from registry.spec.passage import Passage
from registry.spec.weighing import StoredAdapter

StatisticKind = Literal["fisher", "inputs"]
"""`fisher`: the diagonal Fisher information of every value, for a token. `inputs`: the second moments of each
projection's inputs, E[x x^T] over tokens."""

MOST_PASSAGES = 64
"""Passages of a sample that a statistic is computed from."""


class StatisticRequest(Frozen):
    """The statistic of an adapter to compute on texts, each truncated to `max_tokens`; `seed` is for all draws."""

    kind: StatisticKind
    adapter: StoredAdapter
    texts: tuple[Passage, ...] = Field(min_length=1)
    max_tokens: int = Field(default=256, ge=2)
    seed: int = Field(default=0, ge=0, lt=2**32)


class MeasuredStatistic(Frozen):
    """A computed statistic: the blob of its tensors, and the numbers of passages and tokens used."""

    blob: Digest
    passages: int
    tokens: int
