"""Bodies of `/v1/completions`, as OpenAI has them; `sampling` says which of its fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

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
