"""Answers of the OpenAI-compatible endpoints, as the schema describes them and as clients read them."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.inference import Wire


class Usage(Wire):
    """Tokens read and written. `completion_tokens` is absent for embeddings."""

    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int

    @classmethod
    def of(cls, read: int, written: int) -> Usage:
        """The usage of `read` and `written` tokens."""
        return cls(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


class CompletionLogprobs(Wire):
    """Per token; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Wire):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionAnswer(Wire):
    """The answer of `/v1/completions`, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(Wire):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer, with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Wire):
    """Per token of the answer."""

    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(Wire):
    """The answer's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Wire):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatAnswer(Wire):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(Wire):
    """What a chunk adds to an answer's message; what it does not add is unset."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None


class ChatChunkChoice(Wire):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class ChatChunk(Wire):
    """A chunk of a streamed chat answer; `usage` is unset unless the client asked for it, null until the last chunk."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class EncoderCard(Wire):
    """An encoder samples are embedded with: what a client needs to send vectors instead of text."""

    name: str
    digest: str
    unit: Literal["passage", "sentence"]
    dimensions: int


class ModelCard(Wire):
    """A model that can be named in `model`; `digest` is null for base models, which have a fingerprint and encoders.

    `speaks` says whether it continues and scores text: adapters with a head, banks of experts and encoders do not.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    kind: Literal["base", "adapter", "soup"]
    speaks: bool
    base_model: str
    digest: str | None
    max_model_len: int | None = None
    fingerprint: str | None = None
    encoders: list[EncoderCard] | None = None


class ModelList(Wire):
    """Base models, then adapters and soups, newest first; the newest live version of each name."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    has_more: bool = False


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


class TokenizeAnswer(Wire):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(Wire):
    """The text of token ids."""

    prompt: str


class TokenizerInfo(Wire):
    """What a client needs to know of a base model's tokenizer."""

    model: str
    base_model: str
    tokenizer_class: str
    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_id: int | None
    bos_is_added: bool
    chat_template: bool
