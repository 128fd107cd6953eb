"""The settings of default quotas and rates of keys and namespaces, and of retention; part of `service.settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from registry.spec.limits import UploadLimits


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
    key_stored_bytes: int | None = Field(
        None,
        ge=0,
        le=10**15,
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
        description="Default limit of each key on waiting and running cooks, fits and trainings together; 429 beyond "
        "it. Unset: no limit.",
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
    namespace_stored_bytes: int | None = Field(
        None,
        ge=0,
        le=10**15,
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
        description="Default limit of each namespace on waiting and running cooks, fits and trainings together; 429 "
        "beyond it. Unset: no limit.",
    )
    max_uploads: int = Field(
        UploadLimits.uploads,
        ge=1,
        le=10_000,
        description="Maximum number of unfinished uploads in parts of one key; 429 beyond it.",
    )
    max_upload_bytes: int = Field(
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


class RetentionSettings(BaseSettings):
    """When unused and ended objects are removed."""

    keep_upload_seconds: float = Field(
        UploadLimits.lifetime.total_seconds(),
        gt=0,
        description="How long the server keeps an unfinished upload after its last part.",
    )
    collect_days: float = Field(
        7,
        ge=0,
        le=36_500,
        description="Days until the server removes unused data: uploads that nothing uses, selectors that no longer "
        "serve a pool, and retired unnamed soups. 0: never.",
    )
    collect_seconds: float = Field(
        3600.0, gt=0, description="Interval between two removals of unused and outdated data."
    )
    unnamed_soup_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days without use after which the server retires an unnamed soup. A namespace can set its own "
        "number. 0: never.",
    )
    job_days: int = Field(
        365,
        ge=0,
        le=36_500,
        description="Days after its end until the server removes a job and its answer. 0: never.",
    )
    usage_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days until the server removes usage rows; 0: never. If `SOUP_UNNAMED_SOUP_DAYS` or a namespace's "
        "own number is larger, that number applies.",
    )
    audit_days: int = Field(0, ge=0, le=36_500, description="Days until the server removes an audit entry. 0: never.")
