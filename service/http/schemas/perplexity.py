"""Bodies of `/v1/perplexity`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.spec import BaselineReport, PerplexityReport
from service.http.schemas.wire import MixedAdapters, ModelName, Passages, Wire


class PerplexityRequest(Wire):
    """Texts to score under a model, and optionally under a second one to compare with."""

    model: ModelName
    adapters: MixedAdapters | None = None
    texts: Passages = Field(min_length=1)
    baseline: ModelName | None = None
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of the bootstrap behind the standard errors.")


class ComparedModel(BaselineReport):
    """The baseline on the same texts; `difference` is mean NLL per token, the model minus the baseline."""

    model: str
    digest: str | None


class PerplexityAnswer(PerplexityReport):
    """Perplexity of a model on texts; `standard_error` is a lower bound, from bootstrap resamples of the texts."""

    object: Literal["perplexity"] = "perplexity"
    model: str
    digest: str | None
    """The digest of the adapter; null for a base model."""
    baseline: ComparedModel | None = None
