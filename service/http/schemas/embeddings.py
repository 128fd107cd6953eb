"""Bodies of `/v1/embeddings`, as OpenAI has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.http.schemas.wire import MixedAdapters, ModelName, OpenAIBody, TextsOrIds, TokenIds, Usage, Wire, each_of


class EmbeddingRequest(OpenAIBody):
    """`POST /v1/embeddings`: mean-pooled last hidden states of a base model, an adapter or a mixture."""

    model: ModelName
    adapters: MixedAdapters | None = None
    input: TextsOrIds
    """Texts get the base model's BOS in front. Token ids of the base model's tokenizer are not changed: the ids that
    `/tokenize` returns for a text give the same vector as the text."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: Annotated[str, StringConstraints(max_length=1000)] | None = None

    @property
    def inputs(self) -> list[str | TokenIds]:
        """The texts or token ids, one or many, as a list."""
        return each_of(self.input)


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
