"""Bodies of completions and chats, as OpenAI has them; `sampling` says which of its fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from registry.spec.frozen import one_of
from service.http.schemas.sampling import MaxTokens, Neutral, Sampling
from service.http.schemas.wire import TextsOrIds, TokenIds, Usage, Wire, each_of


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: TextsOrIds
    max_tokens: MaxTokens = 16
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0)
    best_of: int | None = Field(default=None, ge=1)
    """Number of choices to generate; the answer has the `n` with the highest mean log-probability per token, best
    first. All count in `usage`. Streams support only 1."""
    add_special_tokens: bool = True
    """Put the base model's BOS in front of text that does not begin with it; token ids are not changed."""
    suffix: Annotated[Any, Neutral("")] = None

    @property
    def generated(self) -> int:
        """The number of choices generated for each prompt."""
        return self.best_of or self.n

    @property
    def ranked(self) -> bool:
        """True if choices are ordered by log-probability instead of by number."""
        return self.generated > 1 and self.best_of is not None

    @property
    def prompts(self) -> list[str | TokenIds]:
        """The prompts, one or many, as a list."""
        return each_of(self.prompt)


class CompletionLogprobs(Wire):
    """One entry per token; the first token of an echoed prompt has no log-probability if no BOS precedes it."""

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


# --- chats --------------------------------------------------------------------------------------------


class TextPart(Wire):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(Wire):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(fail_fast=True)], one_of("must be a text or a list of text parts")
    ]
    name: str | None = None
    # Fields of an answer that is sent back. `parsed` is the content as a client has parsed it, and is ignored.
    parsed: Any = None
    refusal: Annotated[Any, Neutral()] = None
    annotations: Annotated[Any, Neutral([])] = None
    audio: Annotated[Any, Neutral()] = None
    tool_calls: Annotated[Any, Neutral([])] = None
    function_call: Annotated[Any, Neutral()] = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(item.text for item in self.content)


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`. Without a maximum of tokens the answer may fill the context."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1)
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0)
    safety_identifier: Annotated[str, StringConstraints(max_length=1000)] | None = None
    prompt_cache_key: Annotated[str, StringConstraints(max_length=1000)] | None = None
    add_special_tokens: bool = False
    """Put the base model's BOS in front of the text from its chat template, unless the text begins with it. Chat
    templates normally add their own."""
    tools: Annotated[Any, Neutral([])] = None
    tool_choice: Annotated[Any, Neutral("none", "auto")] = None
    parallel_tool_calls: Annotated[Any, Neutral(True, False)] = None
    functions: Annotated[Any, Neutral([])] = None
    function_call: Annotated[Any, Neutral("none")] = None
    modalities: Annotated[Any, Neutral(["text"])] = None
    audio: Annotated[Any, Neutral()] = None
    moderation: Annotated[Any, Neutral()] = None
    prediction: Annotated[Any, Neutral()] = None
    prompt_cache_options: Annotated[Any, Neutral()] = None
    prompt_cache_retention: Annotated[Any, Neutral()] = None
    reasoning_effort: Annotated[Any, Neutral("none")] = None
    verbosity: Annotated[Any, Neutral()] = None
    web_search_options: Annotated[Any, Neutral()] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' goes with 'logprobs': true only")
        if self.max_tokens is not None and self.max_completion_tokens not in {None, self.max_tokens}:
            raise ValueError("'max_tokens' and 'max_completion_tokens' name different limits; send one of them")
        return self

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens, under either of its names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TopLogprob(Wire):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer, with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Wire):
    """Log-probabilities of each token of the answer."""

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
    """The text or role that a chunk adds to an answer's message; other fields are unset."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None


class ChatChunkChoice(Wire):
    """The part of one answer in a chunk."""

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
