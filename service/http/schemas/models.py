"""Bodies of `/v1/models`: OpenAI's, and what a client of ours needs besides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.http.schemas.wire import Wire


class EncoderCard(Wire):
    """An encoder samples are embedded with: what a client needs to send vectors instead of text."""

    name: str
    digest: str
    unit: Literal["passage", "sentence"]
    dimensions: int


class ArchitectureCard(Wire):
    """How a base model is built, for programs that write its adapters in another form."""

    model_type: str
    """The family, as transformers calls it."""
    layers: int
    hidden_size: int
    key_value_heads: int | None
    """Null, as `head_size`, where keys and values are not of one size in all layers."""
    head_size: int | None


class ModelCard(Wire):
    """A model that can be named in `model`; `digest` is null for base models, which have a fingerprint and encoders.

    `speaks` says whether it continues and scores text: adapters with a head, banks of experts and encoders do not.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    """The namespace, or `base`."""
    owner: str | None = None
    """Who answers for the name of an adapter or a soup, where somebody said so."""
    kind: Literal["base", "adapter", "soup"]
    speaks: bool
    base_model: str
    digest: str | None
    tuned: bool = False
    """Whether it is a soup that was trained on the sample that it was cooked for, and so has learnt from it."""
    learnt_from: list[str] = Field(default_factory=list)
    """Digests of all samples that it has learnt from, through its ingredients as well."""
    max_model_len: int | None = None
    packed: bool | None = None
    """Of base models: whether sequences run together, packed in one pass, or one by one, which is slower with many. It
    is found out when the base model is loaded, and null before."""
    fingerprint: str | None = None
    architecture: ArchitectureCard | None = None
    encoders: list[EncoderCard] | None = None


class ModelList(Wire):
    """Base models, then adapters and soups, newest first; the newest live version of each name."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    has_more: bool = False
