"""What callers ask of the engine and what they get back: frozen values, and the one state enum.

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

    from service.engine.grammars import Grammar

FinishReason = Literal["stop", "length"]
TopTokens = tuple[tuple[int, float], ...]
"""(token id, log-probability) of the most likely tokens, best first."""
OnEnd = Callable[[int, int], None]
"""Told of the tokens that were read for a request, 0 where no step had a part of it, and of those generated."""


class State(Enum):
    """Where a request stands; only the scheduler moves it, and the last three are final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing can follow."""
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt; `http.schemas.sampling` says which values are in range.

    `max_tokens=None` is the rest of the context and 0 generates nothing. `temperature=0` is greedy. `seed` fixes
    the random stream of each choice whatever else runs. `logprobs` is the number of alternatives per token (None:
    no log-probabilities at all); `prompt_logprobs` also scores the prompt. `end_ids` are tokens that end a choice
    besides those of the base model. How the others change the draw says `sampler.sample_tokens`;
    log-probabilities are those of the model, whatever is drawn from.
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
    """Continue one prompt `params.n` times; `on_token` is called in the engine thread and must only hand over.

    So is `on_step`, after every step that had a part of the request, behind all tokens of the step, and once for all
    requests that have the same: who wakes somebody up for new tokens does it here. And so is `on_end`, once, however
    the request ends, also where it is refused, and before anybody has the answer.

    `namespace` tells the keys apart that must not learn what others ask: keys and values are shared within one. None
    shares none, with nobody. `owner` is the key itself, None the server: keys take turns. Each choice follows the
    `grammar`, where there is one, and ends as soon as it is complete and nothing may follow.
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
    grammar: Grammar | None = None

    def check(self, shape: BaseShape) -> None:
        """Raises InvalidPrompt or InvalidParameter where the base model cannot take this, or is no language model."""
        check_supports_text(shape, _config(self.adapter), _named(self.base_id, self.adapter))
        check_tokens(self.prompt, shape, self.adapter)
        wrong = next((token for token, _ in self.params.logit_bias if not 0 <= token < shape.vocab_size), None)
        if wrong is not None:
            raise InvalidParameter(
                f"logit_bias names token {wrong}, which is not in the vocabulary of the base model (0 to "
                f"{shape.vocab_size - 1}).",
                param="logit_bias",
            )
        wanted, left = self.params.max_tokens or 0, text_capacity(shape, _config(self.adapter)) - len(self.prompt)
        if wanted > left:
            raise InvalidParameter(
                f"The prompt has {len(self.prompt)} tokens and max_tokens is {wanted}: together "
                f"{len(self.prompt) + wanted}, and {_context(shape, self.adapter)}; ask for at most {left}.",
                param="max_tokens",
            )

    def length_limit(self, shape: BaseShape) -> int:
        """The most tokens a choice may get."""
        limit = self.params.max_tokens
        return text_capacity(shape, _config(self.adapter)) - len(self.prompt) if limit is None else limit


@dataclass(frozen=True)
class ScoreRequest:
    """Log-likelihoods of windows of token ids; `pooled` are the windows whose mean hidden state is wanted too.

    `bos` says that each window starts with a BOS, which is left out of the mean. Of an encoder only mean states can
    be asked for: every window is then one of `pooled`. `owner` is the key that asks, None the server.
    `on_end` is called as of a GenerateRequest.
    """

    base_id: str
    windows: tuple[tuple[int, ...], ...]
    adapter: LoadableAdapter | None = None
    pooled: frozenset[int] = frozenset()
    bos: bool = True
    on_end: OnEnd | None = None
    owner: str | None = None

    def check(self, shape: BaseShape) -> None:
        """Raises InvalidPrompt where the base model cannot take a window, or there is none.

        InvalidParameter where log-likelihoods are asked of what is no language model.
        """
        if not self.windows:
            raise InvalidPrompt("There is nothing to score: send at least one token.", param="prompt")
        if not self.embeds(shape):
            check_supports_text(shape, _config(self.adapter), _named(self.base_id, self.adapter))
        for window in self.windows:
            check_tokens(window, shape, self.adapter)

    def embeds(self, shape: BaseShape) -> bool:
        """Whether mean states of an encoder are all that is asked for."""
        every = len(self.pooled) == len(self.windows)
        return shape.kind == "encoder" and self.adapter is None and every


Request = GenerateRequest | ScoreRequest


def tokens_before(request: Request) -> int:
    """Positions that the request's adapter puts before every text: the length of its prefix."""
    return 0 if request.adapter is None else request.adapter.config.prefix_length


def _config(adapter: LoadableAdapter | None) -> AdapterConfig | None:
    return None if adapter is None else adapter.config


def _named(base_id: str, adapter: LoadableAdapter | None) -> str:
    return f"Base model {base_id!r}" if adapter is None else f"Adapter {adapter.digest}"


def _context(shape: BaseShape, adapter: LoadableAdapter | None) -> str:
    """How much fits, as the end of a sentence."""
    left = text_capacity(shape, _config(adapter))
    taken = "" if left == shape.context else f", of which the adapter's prefix takes {shape.context - left}"
    return f"the context of the base model is {shape.context}{taken}"


def check_tokens(ids: tuple[int, ...], shape: BaseShape, adapter: LoadableAdapter | None = None) -> None:
    """Raises InvalidPrompt for no tokens, too many, or ids beyond the vocabulary."""
    if not ids:
        raise InvalidPrompt("The prompt is empty: send at least one token.", param="prompt")
    if len(ids) > text_capacity(shape, _config(adapter)):
        raise InvalidPrompt(
            f"The prompt has {len(ids)} tokens and {_context(shape, adapter)}: shorten it.", param="prompt"
        )
    wrong = next((i for i in ids if not 0 <= i < shape.vocab_size), None)
    if wrong is not None:
        raise InvalidPrompt(
            f"Token id {wrong} is not in the vocabulary of the base model (0 to {shape.vocab_size - 1}).",
            param="prompt",
        )


@dataclass(frozen=True)
class Delta:
    """One generated token of choice `index`, and the text it released ("" while a stop or a character may follow).

    `offset` is where the token's text begins, in characters of the choice's text.
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
    """One choice. `token_ids` holds every generated token, EOS and those of a stop string included; `text` does not.

    The log-probability arrays are empty where none were asked for, else as long as `token_ids`.
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
    """What a GenerateRequest gives: its choices by index, and the prompt's scores where asked for.

    `reused` tokens of the prompt were not computed for it, but taken over from an earlier request.
    """

    choices: tuple[Completion, ...]
    prompt: PromptScores | None = None
    reused: int = 0


@dataclass(frozen=True)
class Scores:
    """What a ScoreRequest gives: NLL in nats of each window, and float32 (d,) vectors of the pooled ones.

    An encoder has no NLL: `nll` is then empty.
    """

    nll: tuple[float, ...]
    vectors: Mapping[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestTimeline:
    """When one request came, began, gave its first token and ended, without its text. Moments are monotonic seconds."""

    base_id: str
    adapter: str | None
    """Its digest."""
    end: str
    """`finished`, `failed` or `cancelled`."""
    came: float
    began: float | None
    """When a step first had a part of it; None where it ended before."""
    first: float | None
    """When its first token was drawn; None where it ended before."""
    ended: float
    read: int
    written: int


timeline_observer: ContextVar[Callable[[RequestTimeline], None] | None] = ContextVar("watching", default=None)
"""Called once for each request that is submitted in the same context, in the engine's thread: it only hands over."""
