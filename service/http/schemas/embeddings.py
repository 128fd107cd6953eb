"""Bodies of `/v1/embeddings`, as OpenAI has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.http.schemas.wire import ModelName, Texts, Usage, Wire, one_of


class EmbeddingRequest(Wire):
    """`POST /v1/embeddings`: mean-pooled last hidden states of the base model."""

    model: ModelName
    input: Annotated[str | Texts, one_of("must be a text or a list of texts")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: Annotated[str, StringConstraints(max_length=1000)] | None = None


class Embedding(Wire):
    """A vector, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(Wire):
    """The answer of `/v1/embeddings`."""

    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: Usage
