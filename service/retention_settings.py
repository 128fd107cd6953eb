"""How long things are kept, and how often they are looked at; part of `service.settings.Settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class RetentionSettings(BaseSettings):
    """When what is not used any more, or has ended, is removed."""

    collect_days: float = Field(
        7,
        ge=0,
        le=36_500,
        description="Days after which uploads that nothing was made of, selectors that no longer serve, and unnamed "
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
