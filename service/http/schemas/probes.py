"""Bodies of `/v1/adapters/{ns}/{name}/probe`; what a server answered is `spec.ServerReadings`."""

from __future__ import annotations

from typing import Literal

from registry.names import Digest
from registry.spec import NextTokens, Verdict
from service.http.schemas.wire import Wire


class Probe(Wire):
    """The texts of a base model's probe, and the log-probabilities of the next tokens after each."""

    object: Literal["probe"] = "probe"
    adapter: str
    digest: Digest
    base_model: str
    base_fingerprint: Digest
    texts: list[str]
    base: list[NextTokens]
    """With the base model alone."""
    readings: list[NextTokens]
    """With the adapter."""
    scales: list[float]
    """Other scales of the adapter's update that the first texts were read with."""
    scaled: list[list[NextTokens]]
    """The first texts at each of `scales`."""


class Diagnosed(Wire):
    """What a server's model is; differences are root mean squares of log-probabilities, in nats."""

    object: Literal["diagnosis"] = "diagnosis"
    adapter: str
    verdict: Verdict
    sentence: str
    error: float
    """Between the server's model and the adapter."""
    effect: float
    """Between the adapter and its base model: how much it changes."""
    base_error: float | None
    """Between the server's base model and the adapter's; null if the server's was not read."""
    factor: float | None
    """What the adapter's update is multiplied by, if the verdict is `wrong_scale`."""
    other: str | None
    """The adapter that it is, if the verdict is `other_adapter`."""
