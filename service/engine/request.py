"""Requests to the engine and their results: frozen values, and the state of a request.

Routes, jobs and verbs build these; the scheduler orders them and the runner computes them. Nothing here holds a
tensor or a lock. Token ids are what goes into the model, BOS included where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from registry.adapters.loadable import LoadableAdapter
from registry.errors import InvalidParameter, InvalidPrompt
from registry.spec import AdapterConfig, BaseShape
from service.engine.text_support import check_supports_text, text_capacity

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length"]
TopTokens = tuple[tuple[int, float], ...]
"""(token id, log-probability) of the most likely tokens, best first."""
OnEnd = Callable[[int, int], None]
"""Called with the prompt tokens of a request, 0 if no step computed any of it, and the tokens that it generated."""


class State(Enum):
    """State of a request. Only the scheduler changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if no other state follows."""
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt. `http.schemas.sampling` has the valid ranges, `sampler.sample_tokens` the effects.

    `max_tokens=None` is the rest of the context and 0 generates nothing. `temperature=0` is greedy. `seed` fixes
    the random stream of each choice, independently of other requests. `logprobs` is the number of alternatives per
    token (None: no log-probabilities at all); they are the model's, before any of the parameters applies.
    `prompt_logprobs` also scores the prompt. `end_ids` are tokens that end a choice besides those of the base model.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: bool = False
    end_ids: tuple[int, ...] = ()
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class GenerateRequest:
    """Continue one prompt `params.n` times.

    The callbacks run in the engine's thread and must return at once. `on_token` gets every token. `on_step` is called
    after the tokens of each step that computed some of the request, once for all requests with the same callback: the
    place to wake up consumers. `on_end` is called once, however the request ends, also if it is refused, and before
    its result is available.

    `namespace` names the keys that may share cached prefixes; None shares none. `owner` is the key that sent the
    request, None the server: keys take turns. With a validated JSON `schema` each choice follows it, and ends when it
    is complete.
    """

    base_id: str
    prompt: tuple[int, ...]
    adapter: LoadableAdapter | None = None
    params: SamplingParams = SamplingParams()
    on_token: Callable[[Delta], None] | None = None
    on_step: Callable[[], None] | None = None
    on_end: OnEnd | None = None
    namespace: str | None = None
    owner: str | None = None
    schema: str | None = None

    def check(self, shape: BaseShape) -> None:
        """Raise InvalidPrompt or InvalidParameter for what the base model cannot compute."""
        check_supports_text(shape, _config(self.adapter), _label(self.base_id, self.adapter))
        check_tokens(self.prompt, shape, self.adapter)
        invalid = next((token for token, _ in self.params.logit_bias if not 0 <= token < shape.vocab_size), None)
        if invalid is not None:
            raise InvalidParameter(
                f"logit_bias names token {invalid}, which is not in the vocabulary of the base model (0 to "
                f"{shape.vocab_size - 1}).",
                param="logit_bias",
            )
        max_tokens, available = self.params.max_tokens or 0, self._available(shape)
        if max_tokens > available:
            raise InvalidParameter(
                f"The prompt has {len(self.prompt)} tokens and max_tokens is {max_tokens}, together "
                f"{len(self.prompt) + max_tokens}, but {_context(shape, self.adapter)}: request at most "
                f"{available}.",
                param="max_tokens",
            )

    def length_limit(self, shape: BaseShape) -> int:
        """The most tokens a choice may get."""
        return self._available(shape) if self.params.max_tokens is None else self.params.max_tokens

    def _available(self, shape: BaseShape) -> int:
        return text_capacity(shape, _config(self.adapter)) - len(self.prompt)


@dataclass(frozen=True)
class ScoreRequest:
    """Score windows of token ids, and average the last hidden states of those in `pooled`.

    `starts` has the index of the first token of each window that is scored; without it all but the first are. With
    `bos` each window starts with a BOS, which the mean excludes. An encoder only has mean states: all windows are then
    in `pooled`. `owner`, `on_end` and `on_step` are as in a GenerateRequest.
    """

    base_id: str
    windows: tuple[tuple[int, ...], ...]
    adapter: LoadableAdapter | None = None
    pooled: frozenset[int] = frozenset()
    bos: bool = True
    on_end: OnEnd | None = None
    owner: str | None = None
    starts: tuple[int, ...] = ()
    on_step: Callable[[], None] | None = None

    def check(self, shape: BaseShape) -> None:
        """Raise InvalidPrompt for no windows or an invalid one, InvalidParameter for scores by no language model."""
        if not self.windows:
            raise InvalidPrompt("There is nothing to score: send at least one token.", param="prompt")
        if not self._only_embeds(shape):
            check_supports_text(shape, _config(self.adapter), _label(self.base_id, self.adapter))
        for window in self.windows:
            check_tokens(window, shape, self.adapter)

    def _only_embeds(self, shape: BaseShape) -> bool:
        return shape.kind == "encoder" and self.adapter is None and len(self.pooled) == len(self.windows)


Request = GenerateRequest | ScoreRequest


def virtual_tokens(request: Request) -> int:
    """Positions that the adapter of a request puts before each text: the length of its prefix."""
    return 0 if request.adapter is None else request.adapter.config.prefix_length


def _config(adapter: LoadableAdapter | None) -> AdapterConfig | None:
    return None if adapter is None else adapter.config


def _label(base_id: str, adapter: LoadableAdapter | None) -> str:
    return f"Base model {base_id!r}" if adapter is None else f"Adapter {adapter.digest}"


def _context(shape: BaseShape, adapter: LoadableAdapter | None) -> str:
    """The size of the context, as the end of a sentence."""
    prefix = shape.context - text_capacity(shape, _config(adapter))
    less_prefix = f", of which the adapter's prefix takes {prefix}" if prefix else ""
    return f"the context of the base model is {shape.context}{less_prefix}"


def check_tokens(ids: tuple[int, ...], shape: BaseShape, adapter: LoadableAdapter | None = None) -> None:
    """Raise InvalidPrompt for no tokens, too many, or ids outside the vocabulary."""
    if not ids:
        raise InvalidPrompt("The prompt is empty: send at least one token.", param="prompt")
    if len(ids) > text_capacity(shape, _config(adapter)):
        raise InvalidPrompt(
            f"The prompt has {len(ids)} tokens and {_context(shape, adapter)}: shorten it.", param="prompt"
        )
    invalid = next((token for token in ids if not 0 <= token < shape.vocab_size), None)
    if invalid is not None:
        raise InvalidPrompt(
            f"Token id {invalid} is not in the vocabulary of the base model (0 to {shape.vocab_size - 1}).",
            param="prompt",
        )


@dataclass(frozen=True)
class Delta:
    """One generated token of choice `index`.

    `text` is what became certain with it: "" inside of a character or of what may be a stop string. `offset` is where
    the token's own text begins, in characters of the choice's text.
    """

    index: int
    token_id: int
    text: str
    offset: int
    logprob: float | None = None
    top: TopTokens = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Completion:
    """One choice. `token_ids` includes EOS and the tokens of a stop string, `text` excludes them.

    The log-probabilities are empty if none were requested, else as many as `token_ids`.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    token_logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopTokens, ...] = ()
    text_offsets: tuple[int, ...] = ()


@dataclass(frozen=True)
class PromptScores:
    """Log-probabilities of every prompt token given those before it; the first has none."""

    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[TopTokens | None, ...]


@dataclass(frozen=True)
class Generation:
    """Result of a GenerateRequest: its choices by index, and the prompt's scores if requested.

    The keys and values of `reused` tokens of the prompt came from an earlier request.
    """

    choices: tuple[Completion, ...]
    prompt: PromptScores | None = None
    reused: int = 0


@dataclass(frozen=True)
class Scores:
    """Result of a ScoreRequest: NLL in nats of each window, and float32 (hidden,) means of the pooled ones.

    `nll` is empty for an encoder.
    """

    nll: tuple[float, ...]
    vectors: Mapping[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestTimeline:
    """When a request arrived, started, gave its first token and ended, in monotonic seconds. Without its text."""

    base_id: str
    digest: str | None
    """Of its adapter."""
    status: str
    """`finished`, `failed` or `cancelled`."""
    arrived_at: float
    started_at: float | None
    """When the first step computed some of it; None if it ended before."""
    first_token_at: float | None
    """None if it ended without a token."""
    ended_at: float
    prompt_tokens: int
    generated_tokens: int


timeline_observer: ContextVar[Callable[[RequestTimeline], None] | None] = ContextVar("timeline_observer", default=None)
"""Called in the engine's thread when a request ends that was submitted in the same context; must return at once."""
