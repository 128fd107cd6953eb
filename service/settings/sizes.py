"""The settings of how large requests, files and samples may be; part of `service.settings`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from registry.spec.limits import SampleLimits, SizeLimits, UploadLimits

MIB = 1024 * 1024


class SizeSettings(BaseSettings):
    """The most that one request, file or sample may hold."""

    max_json_bytes: int = Field(
        64 * MIB, ge=1024, description="Largest JSON body; most calls take less, all of them 413 beyond it."
    )
    max_json_values: int = Field(
        20_000, ge=100, description="Values of one JSON body, beside the texts and token ids that a call is for."
    )
    max_json_bytes_held: int = Field(
        256 * MIB, ge=1024, description="JSON bodies of all requests together, one key's at most half; beyond it 429."
    )
    max_inline_bytes: int = Field(
        SizeLimits.inline_bytes, ge=0, description="Largest file inline in a manifest, decoded."
    )
    max_blob_bytes: int = Field(UploadLimits.blob_bytes, ge=1, description="Largest blob uploaded.")
    max_weights_bytes: int = Field(SizeLimits.weights_bytes, ge=1, description="Largest weights file of an adapter.")
    max_embeddings_bytes: int = Field(
        SizeLimits.embeddings_bytes, ge=1, description="Largest embeddings file of a sample."
    )
    max_sample_bytes: int = Field(
        SizeLimits.sample_bytes, ge=1, description="Largest sample as an uploaded JSON-lines blob."
    )
    max_texts: int = Field(2000, ge=1, description="Texts in one perplexity or embeddings request.")
    max_text_chars: int = Field(SampleLimits.max_chars, ge=1, description="Characters of one text or prompt.")
    max_prompts: int = Field(256, ge=1, description="Prompts in one completions request.")
    max_choices: int = Field(16, ge=1, description="Largest `n` of a completions request.")
    max_logprobs: int = Field(20, ge=0, description="Largest number of alternatives per token.")
    max_ingredients: int = Field(64, ge=1, description="Largest number of ingredients of a recipe.")
    page_size: int = Field(50, ge=1, le=1000, description="Rows of a page where the request names no limit.")
    max_page_size: int = Field(200, ge=1, le=1000, description="Largest page a request may ask for.")
    min_passages: int = Field(
        SampleLimits.minimum,
        ge=1,
        description="An adapter's sample with fewer passages is refused; to cook or choose, 5 do.",
    )
    few_passages: int = Field(SampleLimits.good, ge=1, description="A sample with fewer passages is noted.")
    max_passages: int = Field(
        SampleLimits.maximum, ge=1, description="A larger sample is drawn down to this with a recorded seed."
    )
    max_sample_chars: int = Field(
        SampleLimits.characters,
        ge=1,
        description="Characters of all passages of a sample, as many as are kept; beyond it 422.",
    )
