"""Bodies of the OpenAI-compatible endpoints. Never imports torch.

Nothing is ignored silently: a field of OpenAI's that has no effect here is accepted with its neutral value only, and
refused by name otherwise; a field OpenAI does not have either is refused as unknown. `user` and `metadata` are
accepted and dropped, which is all that OpenAI promises of them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from service.http.schemas.inference import ModelName, Wire

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
"""Lists end at their first bad entry: an error for each of millions would cost gigabytes."""
StopText = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MaxTokens = Annotated[int, Field(ge=0, le=1_000_000)]


def _only(*neutral: Any) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral):
            raise ValueError("is not supported by this server; leave it out")
        return value

    return check


def _neutral(*values: Any) -> Any:
    """A type that takes `values` (and null) only: what OpenAI treats as 'not asked for'."""
    allowed = [*values, None]
    return Annotated[Any, AfterValidator(_only(*allowed)), WithJsonSchema({"enum": allowed})]


def _one_of(sentence: str) -> WrapValidator:
    """A union that fails with one sentence instead of one error per member."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(sentence) from error

    return WrapValidator(check)


Prompt = Annotated[
    str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
    _one_of("must be a text, a list of texts, a list of token ids, or a list of such lists"),
]
Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=4)] | None,
    _one_of("must be a text or up to 4 texts, none empty or beyond 500 characters"),
]


class StreamOptions(Wire):
    """What a stream carries beside its text."""

    include_usage: bool = False
    include_obfuscation: _neutral(False) = None  # type: ignore[valid-type]


class _Sampling(Wire):
    """What completions and chat completions have in common."""

    model: ModelName
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    n: int = Field(default=1, ge=1)
    stop: Stop = None
    seed: Seed | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=1000)] | None = None
    metadata: dict[str, Any] | None = None
    # neutral values only
    presence_penalty: _neutral(0) = None  # type: ignore[valid-type]
    frequency_penalty: _neutral(0) = None  # type: ignore[valid-type]
    logit_bias: _neutral({}) = None  # type: ignore[valid-type]
    store: _neutral(False) = None  # type: ignore[valid-type]
    service_tier: _neutral("auto", "default") = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, values: Any) -> Any:
        """Clients send null for what they leave open; it means the default."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or name not in cls.model_fields}

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> _Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' goes with 'stream': true only")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Sampling):
    """`POST /v1/completions`."""

    prompt: Prompt
    max_tokens: MaxTokens = 16
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0)
    best_of: int | None = Field(default=None, ge=1)
    suffix: _neutral("") = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _best_of_is_n(self) -> CompletionRequest:
        if self.best_of not in {None, self.n}:
            raise ValueError("'best_of' other than 'n' is not supported by this server; leave it out")
        return self

    @property
    def prompts(self) -> list[str | TokenIds]:
        """The prompts, one or many, as a list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [token for token in self.prompt if isinstance(token, int)]
        return [ids] if ids else [part for part in self.prompt if not isinstance(part, int)]


class TextPart(Wire):
    """A part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class ChatMessage(Wire):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(fail_fast=True)], _one_of("must be a text or a list of text parts")
    ]
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Sampling):
    """`POST /v1/chat/completions`. Without a limit the answer may fill the context."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1)
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0)
    tools: _neutral([]) = None  # type: ignore[valid-type]
    tool_choice: _neutral("none", "auto") = None  # type: ignore[valid-type]
    parallel_tool_calls: _neutral(True, False) = None  # type: ignore[valid-type]
    functions: _neutral([]) = None  # type: ignore[valid-type]
    function_call: _neutral("none") = None  # type: ignore[valid-type]
    response_format: _neutral({"type": "text"}) = None  # type: ignore[valid-type]
    modalities: _neutral(["text"]) = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' goes with 'logprobs': true only")
        if self.max_tokens is not None and self.max_completion_tokens not in {None, self.max_tokens}:
            raise ValueError("'max_tokens' and 'max_completion_tokens' name different limits; send one of them")
        return self

    @property
    def limit(self) -> int | None:
        """The limit under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class EmbeddingRequest(Wire):
    """`POST /v1/embeddings`: mean-pooled last hidden states of the base model."""

    model: ModelName
    input: Annotated[str | Texts, _one_of("must be a text or a list of texts")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: Annotated[str, StringConstraints(max_length=1000)] | None = None


class TokenizeRequest(Wire):
    """`POST /tokenize`, as vLLM has it. `add_special_tokens` puts the base's BOS in front, as completions do."""

    model: ModelName
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Wire):
    """`POST /detokenize`, as vLLM has it."""

    model: ModelName
    tokens: TokenIds
