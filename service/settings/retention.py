"""The settings of when unused and ended objects are removed; part of `service.settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from registry.spec.limits import UploadLimits
from service.settings.sizes import Seconds


class RetentionSettings(BaseSettings):
    """When unused and ended objects are removed."""

    keep_upload_seconds: Seconds = Field(
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
    collect_seconds: Seconds = Field(
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
