"""The settings that bound what clients send, as the registry's verbs take them."""

from __future__ import annotations

from registry.registry import Limits, SampleLimits
from service.settings import Settings


def intake_limits(settings: Settings) -> Limits:
    """Sizes and counts of the settings."""
    return Limits(
        inline_bytes=settings.max_inline_bytes,
        weights_bytes=settings.max_weights_bytes,
        sample_bytes=settings.max_sample_bytes,
        embeddings_bytes=settings.max_embeddings_bytes,
        sample=SampleLimits(
            minimum=settings.min_passages,
            good=settings.few_passages,
            maximum=settings.max_passages,
            max_chars=settings.max_text_chars,
        ),
    )
