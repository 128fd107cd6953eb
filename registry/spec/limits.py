"""Limits of keys and namespaces, rates of inference and quotas, and of the sizes of what clients send.

The defaults of sizes and uploads are those of the server's settings, which refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from registry.spec.frozen import Frozen

MAX_INGREDIENTS = 64
"""Adapters of one soup or mixture. A server may allow more in a recipe by hand (`SOUP_MAX_INGREDIENTS`)."""
MOST_OF_A_LIMIT = 10**15
"""The largest limit; JSON represents it exactly."""
Rate = Annotated[int, Field(strict=True, ge=1, le=MOST_OF_A_LIMIT)]
Quota = Annotated[int, Field(strict=True, ge=0, le=MOST_OF_A_LIMIT)]
LimitKind = Literal["key", "namespace"]
"""The kind of subject that limits apply to."""


class UseLimits(Frozen):
    """The limits of one key or namespace; null is the server's default, or no limit."""

    requests_per_minute: Rate | None = None
    """Inference requests per minute: completions, chat, embeddings, perplexity."""
    tokens_per_minute: Rate | None = None
    """Tokens per minute that these requests read and write."""
    stored_bytes: Quota | None = None
    """Bytes of uploaded blobs, and of weights, samples, embeddings and statistics, including those of retired
    versions."""
    adapters: Quota | None = None
    """Live versions of adapters and soups."""
    jobs: Quota | None = None
    """Queued and running cooks, fits, evaluations and trainings."""

    def over(self, defaults: UseLimits) -> UseLimits:
        """These limits, with those of `defaults` where they are null."""
        return defaults.model_copy(update=self.model_dump(exclude_none=True))


class DefaultLimits(Frozen):
    """The server's limits for keys and namespaces without their own."""

    key: UseLimits = UseLimits()
    namespace: UseLimits = UseLimits()

    def of(self, kind: LimitKind) -> UseLimits:
        """The limits of keys or of namespaces."""
        return self.key if kind == "key" else self.namespace


@dataclass(frozen=True)
class SampleLimits:
    """Limits of a sample.

    An adapter's sample needs `minimum` sequences, one to cook or select for min(`minimum`, `novel`). Fewer than `good`
    are noted in its report, from more than `maximum` a draw is taken. `max_chars` are the characters of a text,
    `characters` those of all.
    """

    minimum: int = 20
    novel: int = 5
    good: int = 100
    maximum: int = 500
    max_chars: int = 1_000_000
    characters: int = 2_000_000

    @property
    def with_single_sequence(self) -> SampleLimits:
        """These limits with a minimum of one sequence, for single prompts."""
        return replace(self, novel=1)


@dataclass(frozen=True)
class SizeLimits:
    """Maximum sizes of what clients send."""

    inline_bytes: int = 32 * 2**20
    weights_bytes: int = 2**30
    sample_bytes: int = 16 * 2**20
    embeddings_bytes: int = 64 * 2**20
    sample: SampleLimits = SampleLimits()


@dataclass(frozen=True)
class UploadLimits:
    """The open uploads of a key, their bytes together, the bytes of a blob, and how long an idle upload is kept."""

    uploads: int = 32
    reserved_bytes: int = 8 * 2**30
    blob_bytes: int = 2 * 2**30
    lifetime: timedelta = timedelta(days=1)
