"""The settings of default quotas and rates of keys and namespaces, and of retention; part of `service.settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from registry.spec.limits import UploadLimits


class QuotaSettings(BaseSettings):
    """Default quotas and rates of keys and namespaces without limits of their own."""

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
    max_uploads: int = Field(
        UploadLimits.uploads,
        ge=1,
        le=10_000,
        description="Uploads in parts that a key may have unfinished; beyond it 429.",
    )
    max_upload_bytes: int = Field(
        UploadLimits.reserved_bytes,
        ge=1,
        description="Bytes of a key's unfinished uploads together; beyond it 429 for all but one.",
    )
    usage_seconds: float = Field(
        5.0, gt=0, le=3600, description="How often counted usage is written; a process that is killed loses as much."
    )


class RetentionSettings(BaseSettings):
    """When unused and ended objects are removed."""

    keep_upload_seconds: float = Field(
        UploadLimits.lifetime.total_seconds(),
        gt=0,
        description="How long an unfinished upload is kept after its last part.",
    )
    collect_days: float = Field(
        7,
        ge=0,
        le=36_500,
        description="Days after which blobs that nothing was made of, selectors that no longer serve, and unnamed "
        "soups that were retired are removed; 0: never.",
    )
    collect_seconds: float = Field(3600.0, gt=0, description="How often what is due is removed.")
    unnamed_soup_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after which an unnamed soup that nobody used is retired, where its namespace says nothing "
        "else; 0: never.",
    )
    job_days: int = Field(
        365,
        ge=0,
        le=36_500,
        description="Days after which jobs that have ended are removed, with what they answered; 0: never.",
    )
    usage_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after which usage is removed (a row for each day, key, namespace and model), no fewer than "
        "unnamed soups are kept without use; 0: never.",
    )
    audit_days: int = Field(
        0, ge=0, le=36_500, description="Days after which entries of the audit are removed; 0: never."
    )
