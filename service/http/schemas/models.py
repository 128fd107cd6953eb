"""Bodies of `/v1/models`: OpenAI's fields, and further ones for our clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.http.schemas.wire import Listing, Wire


class EncoderCard(Wire):
    """An encoder of samples, for clients that send vectors instead of text."""

    name: str
    digest: str
    unit: Literal["passage", "sentence"]
    dimensions: int


class ArchitectureCard(Wire):
    """The architecture of a base model, for programs that convert its adapters to another format."""

    model_type: str
    """The model type in transformers."""
    layers: int
    hidden_size: int
    key_value_heads: int | None
    """Null, like `head_size`, if the size of keys and values differs between layers."""
    head_size: int | None


class ModelCard(Wire):
    """A model that can be named in `model`; `digest` is null for base models, which have a fingerprint and encoders.

    `speaks` is true if it can continue and score text: adapters with a head, banks of experts and encoders cannot.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    """The namespace, or `base`."""
    owner: str | None = None
    """The team or address responsible for an adapter or soup, if one is set."""
    kind: Literal["base", "adapter", "soup"]
    speaks: bool
    base_model: str
    digest: str | None
    tuned: bool = False
    """True for a soup that was trained on the sample it was cooked for."""
    learnt_from: list[str] = Field(default_factory=list)
    """Digests of all samples it was trained on, including those of its ingredients."""
    max_model_len: int | None = None
    packed: bool | None = None
    """For base models: true if sequences run packed in one pass, false if they run one by one, which is slower. Null
    until the base model has been loaded."""
    fingerprint: str | None = None
    architecture: ArchitectureCard | None = None
    encoders: list[EncoderCard] | None = None


class ModelList(Listing[ModelCard]):
    """Base models, then the newest live version of each adapter or soup, newest first."""

    has_more: bool = False
