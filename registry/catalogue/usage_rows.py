"""Rows of usage: sums of requests and tokens by day, key, namespace and model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UsageKey:
    """The key of a usage row: UTC day (2030-01-31), API key, namespace and model."""

    day: str
    key_id: str
    namespace: str
    model: str


@dataclass(frozen=True)
class UsageSum:
    """Requests that the engine started, their prompt tokens, and their generated tokens."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, usage: UsageSum) -> UsageSum:
        return UsageSum(
            self.requests + usage.requests, self.tokens_in + usage.tokens_in, self.tokens_out + usage.tokens_out
        )


@dataclass(frozen=True)
class UsageRow(UsageSum):
    """A sum of usage over a group; columns that it is not grouped by are None."""

    day: str | None = None
    key_id: str | None = None
    namespace: str | None = None
    model: str | None = None
