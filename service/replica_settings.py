"""The settings of a server as one of several that share a database; they are part of `service.settings.Settings`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings


class ReplicaSettings(BaseSettings):
    """What a server does of all that servers do, and how the others hear of it."""

    role: Literal["all", "api", "worker"] = Field(
        "all", description="`api` answers and runs no jobs, `worker` runs jobs and answers health checks alone."
    )
    replica_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/?#@]+$",
        description="Where routers reach this server (`http://10.0.0.5:8000`); none: they send it nothing.",
    )
    replica_beat_seconds: float = Field(
        2.0, ge=0.1, le=60, description="How often a server says on PostgreSQL that it is there; two missed: it is out."
    )
