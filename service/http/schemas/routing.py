"""Bodies of `/v1/route`: the models that `auto` chooses for texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.spec import BaseId
from service.http.schemas.wire import MixedAdapter, Wire


class RouteRequest(Wire):
    """`POST /v1/route`: a prompt, or the user's messages of a chat."""

    texts: list[str] = Field(min_length=1, max_length=500, fail_fast=True)
    base_model: BaseId | None = None
    """The base model of the adapters to compare; optional if the server has one base model."""


class Route(Wire):
    """The models for a prompt."""

    object: Literal["route"] = "route"
    model: str
    """One model, for an engine that cannot mix: the adapter with the highest posterior. It is `base/<id>` if that
    posterior is less than half or the prompt is novel."""
    mixture: str
    """The name of the mixture that `auto` uses."""
    adapters: list[MixedAdapter]
    """Adapters with their shares of the posterior, best first."""
    novelty: float | None
    """Percentile (0 to 100) of the prompt's distance to the adapters among the distances of their own samples' text."""
