"""Bodies of `/v1/adapters/{ns}/{name}/probe`; what a server answered is `spec.ServerReadings`."""

from __future__ import annotations

from typing import Literal

from registry.names import Digest
from registry.spec import Diagnosis, NextTokens
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
    """Readings of the base model alone."""
    readings: list[NextTokens]
    """Readings with the adapter."""


class Diagnosed(Diagnosis):
    """The diagnosis of a server's model."""

    object: Literal["diagnosis"] = "diagnosis"
    adapter: str
