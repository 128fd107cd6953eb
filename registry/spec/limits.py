"""Limits of keys and namespaces: rates of inference, and quotas of what is stored and queued."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from registry.spec.frozen import Frozen

MOST_OF_A_LIMIT = 10**15
"""The largest limit; JSON represents it exactly."""
Rate = Annotated[int, Field(strict=True, ge=1, le=MOST_OF_A_LIMIT)]
Quota = Annotated[int, Field(strict=True, ge=0, le=MOST_OF_A_LIMIT)]
LimitKind = Literal["key", "namespace"]
"""The kind of subject that limits apply to."""


class UseLimits(Frozen):
    """The limits of one key or namespace; null leaves one to the server's default, or is none."""

    requests_per_minute: Rate | None = None
    """Requests for inference: completions, chat, embeddings, perplexity."""
    tokens_per_minute: Rate | None = None
    """Tokens read and written by them."""
    stored_bytes: Quota | None = None
    """Bytes of uploaded blobs, and of weights, samples, embeddings and statistics, retired ones included."""
    adapters: Quota | None = None
    """Live versions of adapters and soups."""
    jobs: Quota | None = None
    """Cooks, fits and trainings that wait or run."""

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
