"""The settings of default quotas and rates of keys and namespaces; part of `service.settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from registry.spec.limits import UploadLimits
from service.settings.sizes import Bytes


class QuotaSettings(BaseSettings):
    """Default quotas and rates of keys and namespaces without limits of their own."""

    key_requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each key on inference requests per minute; 429 beyond it. Unset: no limit.",
    )
    key_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each key on tokens of prompts and answers per minute; 429 beyond it. Unset: no "
        "limit.",
    )
    key_stored_bytes: Bytes | None = Field(
        None,
        ge=0,
        description="Default limit of each key on the bytes of all its stored files; 413 beyond it. Unset: no limit.",
    )
    key_adapters: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each key on live versions of adapters and soups; 413 beyond it. Unset: no limit.",
    )
    key_jobs: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each key on waiting and running cooks, fits, evaluations and trainings together; "
        "429 beyond it. Unset: no limit.",
    )
    namespace_requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each namespace on inference requests per minute; 429 beyond it. Unset: no limit.",
    )
    namespace_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each namespace on tokens of prompts and answers per minute; 429 beyond it. "
        "Unset: no limit.",
    )
    namespace_stored_bytes: Bytes | None = Field(
        None,
        ge=0,
        description="Default limit of each namespace on the bytes of all its stored files; 413 beyond it. Unset: no "
        "limit.",
    )
    namespace_adapters: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each namespace on live versions of adapters and soups; 413 beyond it. Unset: no "
        "limit.",
    )
    namespace_jobs: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each namespace on waiting and running cooks, fits, evaluations and trainings "
        "together; 429 beyond it. Unset: no limit.",
    )
    max_uploads: int = Field(
        UploadLimits.uploads,
        ge=1,
        le=10_000,
        description="Maximum number of unfinished uploads in parts of one key; 429 beyond it.",
    )
    max_upload_bytes: Bytes = Field(
        UploadLimits.reserved_bytes,
        ge=1,
        description="Maximum size of all unfinished uploads of one key together; 429 beyond it. A key's only "
        "unfinished upload is always accepted.",
    )
    usage_seconds: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="Interval at which the server writes usage to the database. A killed server loses the counts "
        "since the last write.",
    )
