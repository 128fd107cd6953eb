"""Limits of requests, files, keys and namespaces, and times after which objects are removed.

Part of `service.settings`.
"""

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


class LimitSettings(BaseSettings):
    """The limits of a server, and when it removes unused and ended objects."""

    # --- when unused and ended objects are removed ----------------------------------------------------
    keep_upload_seconds: Seconds = Field(
        UploadLimits.lifetime.total_seconds(),
        gt=0,
        description="How long the server keeps an unfinished upload after its last part.",
    )
    collect_days: float = Field(
        7,
        ge=0,
        le=36_500,
        description="Days until the server removes unused data: uploads that nothing uses, selectors that no longer "
        "serve a pool, and retired unnamed soups. 0: never.",
    )
    collect_seconds: Seconds = Field(
        3600.0, gt=0, description="Interval between two removals of unused and outdated data."
    )
    unnamed_soup_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days without use after which the server retires an unnamed soup. A namespace can set its own "
        "number. 0: never.",
    )
    job_days: int = Field(
        365,
        ge=0,
        le=36_500,
        description="Days after its end until the server removes a job and its answer. 0: never.",
    )
    usage_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days until the server removes usage rows; 0: never. If `SOUP_UNNAMED_SOUP_DAYS` or a namespace's "
        "own number is larger, that number applies.",
    )
    audit_days: int = Field(0, ge=0, le=36_500, description="Days until the server removes an audit entry. 0: never.")

    # --- quotas and rates of keys and namespaces without limits of their own --------------------------
    key_requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each key on inference requests per minute; 429 beyond it. Unset: no limit.",
    )
    key_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each key on tokens of prompts and answers per minute; 429 beyond it. Unset: no "
        "limit.",
    )
    key_stored_bytes: Bytes | None = Field(
        None,
        ge=0,
        description="Default limit of each key on the bytes of all its stored files; 413 beyond it. Unset: no limit.",
    )
    key_adapters: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each key on live versions of adapters and soups; 413 beyond it. Unset: no limit.",
    )
    key_jobs: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each key on waiting and running cooks, fits, evaluations and trainings together; "
        "429 beyond it. Unset: no limit.",
    )
    namespace_requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each namespace on inference requests per minute; 429 beyond it. Unset: no limit.",
    )
    namespace_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Default limit of each namespace on tokens of prompts and answers per minute; 429 beyond it. "
        "Unset: no limit.",
    )
    namespace_stored_bytes: Bytes | None = Field(
        None,
        ge=0,
        description="Default limit of each namespace on the bytes of all its stored files; 413 beyond it. Unset: no "
        "limit.",
    )
    namespace_adapters: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each namespace on live versions of adapters and soups; 413 beyond it. Unset: no "
        "limit.",
    )
    namespace_jobs: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Default limit of each namespace on waiting and running cooks, fits, evaluations and trainings "
        "together; 429 beyond it. Unset: no limit.",
    )
    max_uploads: int = Field(
        UploadLimits.uploads,
        ge=1,
        le=10_000,
        description="Maximum number of unfinished uploads in parts of one key; 429 beyond it.",
    )
    max_upload_bytes: Bytes = Field(
        UploadLimits.reserved_bytes,
        ge=1,
        description="Maximum size of all unfinished uploads of one key together; 429 beyond it. A key's only "
        "unfinished upload is always accepted.",
    )
    usage_seconds: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="Interval at which the server writes usage to the database. A killed server loses the counts "
        "since the last write.",
    )

    # --- the most that one request, file or sample may hold -------------------------------------------
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
