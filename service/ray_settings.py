"""The settings of a server whose texts are generated on Ray; they are part of `service.settings.Settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class RaySettings(BaseSettings):
    """Which Ray cluster generates for a server."""

    ray_address: str | None = Field(
        None,
        description="Head of the Ray cluster (`10.0.0.5:6379`) whose replicas generate; none: this server does.",
    )
    ray_app: str = Field(
        "soup",
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="Name of the replicas that `soup ray deploy` gave them.",
    )
    ray_seconds: float = Field(
        60.0, gt=0, description="How long a request waits for a replica on Ray to take it before it is answered 503."
    )
