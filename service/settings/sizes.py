"""The settings of how large requests, files and samples may be; part of `service.settings`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from registry.spec.limits import MAX_INGREDIENTS, SampleLimits, SizeLimits, UploadLimits

MIB = 1024 * 1024
Seconds = Annotated[float, Field(le=36_500 * 86_400)]
"""A duration of at most a hundred years: dates end in the year 9999, and timeouts after 292 years."""
Bytes = Annotated[int, Field(le=10**15)]
"""A size of at most a petabyte, which databases can compare with the sizes of files."""


class SizeSettings(BaseSettings):
    """The most that one request, file or sample may hold."""

    max_json_bytes: Bytes = Field(
        64 * MIB, ge=1024, description="Maximum size of a JSON body; 413 beyond it. Most calls have a lower limit."
    )
    max_json_values: int = Field(
        20_000,
        ge=100,
        description="Maximum number of values in a JSON body; 413 beyond it. Calls that take many texts, token ids or "
        "weights allow more.",
    )
    max_json_bytes_held: Bytes = Field(
        256 * MIB,
        ge=1024,
        description="Maximum size of the JSON bodies of all running requests together, half of it for one key; 429 "
        "beyond it.",
    )
    max_inline_bytes: Bytes = Field(
        SizeLimits.inline_bytes,
        ge=0,
        description="Maximum decoded size of a file that is inline in a manifest; 413 beyond it.",
    )
    max_blob_bytes: Bytes = Field(
        UploadLimits.blob_bytes, ge=1, description="Maximum size of an uploaded blob; 413 beyond it."
    )
    max_weights_bytes: Bytes = Field(
        SizeLimits.weights_bytes, ge=1, description="Maximum size of an adapter's weights file; 413 beyond it."
    )
    max_embeddings_bytes: Bytes = Field(
        SizeLimits.embeddings_bytes, ge=1, description="Maximum size of a sample's embeddings file; 413 beyond it."
    )
    max_sample_bytes: Bytes = Field(
        SizeLimits.sample_bytes,
        ge=1,
        description="Maximum size of a sample that is uploaded as a blob of JSON lines; 413 beyond it.",
    )
    max_texts: int = Field(
        2000, ge=1, description="Maximum number of texts in a perplexity or embeddings request; 413 beyond it."
    )
    max_text_chars: int = Field(
        SampleLimits.max_chars,
        ge=1,
        description="Maximum number of characters, or of token ids, in one text, prompt, conversation or passage; 413 "
        "beyond it.",
    )
    max_prompts: int = Field(
        256, ge=1, description="Maximum number of prompts in a completions request; 413 beyond it."
    )
    max_choices: int = Field(
        16, ge=1, description="Maximum `n` and `best_of` of a completions or chat request; 400 beyond it."
    )
    max_logprobs: int = Field(
        20, ge=0, description="Maximum number of alternatives per token (`logprobs`); 400 beyond it."
    )
    max_ingredients: int = Field(
        MAX_INGREDIENTS, ge=1, description="Maximum number of ingredients of a recipe by hand; 400 beyond it."
    )
    page_size: int = Field(50, ge=1, le=1000, description="Rows on one page of a list if the request sets no `limit`.")
    max_page_size: int = Field(
        200, ge=1, le=1000, description="Maximum `limit` of a request for a list; 400 beyond it."
    )
    min_passages: int = Field(
        SampleLimits.minimum,
        ge=1,
        description="Minimum number of passages in an adapter's sample; 422 below it. To cook or select, 5 are enough.",
    )
    few_passages: int = Field(
        SampleLimits.good, ge=1, description="A sample with fewer passages gets a note in its report."
    )
    max_passages: int = Field(
        SampleLimits.maximum,
        ge=1,
        description="Maximum number of passages that the server keeps of a sample. It draws them from a larger "
        "sample, with a recorded seed.",
    )
    max_sample_chars: int = Field(
        SampleLimits.characters,
        ge=1,
        description="Maximum number of characters of all kept passages of a sample together; 422 beyond it.",
    )
