"""The limits of keys and namespaces that have none of their own; they are part of `service.settings.Settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class LimitSettings(BaseSettings):
    """How much a key, and a namespace, may ask for and store where nobody has said so."""

    key_requests_per_minute: int | None = Field(
        None, ge=1, le=10**15, description="Requests for inference a minute of a key; beyond it 429; none: no limit."
    )
    key_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Tokens read and written by them a minute of a key; beyond it 429; none: no limit.",
    )
    key_stored_bytes: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Stored bytes of a key, of whatever kind of file; beyond it 413; none: no limit.",
    )
    key_adapters: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Live versions of adapters and soups of a key; beyond it 413; none: no limit.",
    )
    key_jobs: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Cooks, fits and trainings that wait or run of a key; beyond it 429; none: no limit.",
    )
    namespace_requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Requests for inference a minute of a namespace; beyond it 429; none: no limit.",
    )
    namespace_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Tokens read and written by them a minute of a namespace; beyond it 429; none: no limit.",
    )
    namespace_stored_bytes: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Stored bytes of a namespace, of whatever kind of file; beyond it 413; none: no limit.",
    )
    namespace_adapters: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Live versions of adapters and soups of a namespace; beyond it 413; none: no limit.",
    )
    namespace_jobs: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Cooks, fits and trainings that wait or run of a namespace; beyond it 429; none: no limit.",
    )
    usage_seconds: float = Field(
        5.0, gt=0, le=3600, description="How often counted usage is written; a process that is killed loses as much."
    )
