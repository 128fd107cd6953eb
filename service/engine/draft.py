"""Drafts of answers: what the engine has computed of a request so far, and the result of its ticket.

Used by the engine's thread only. Results and errors are set outside of its lock, because code that waits for a ticket
may submit again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np

from registry.base_model import BaseText
from registry.errors import Internal, SoupError
from service.engine.answer_choice import Choice, StopCondition
from service.engine.grammars import GrammarState
from service.engine.request import (
    GenerateRequest,
    Generation,
    PromptScores,
    RequestTimeline,
    ScoreRequest,
    Scores,
    State,
    TopTokens,
    timeline_observer,
)
from service.engine.sampler import RandomStream
from service.engine.steps import SequenceGroup
from service.engine.text_support import stop_token_ids

log = logging.getLogger("soup.engine")


class RequestProgress:
    """When a request arrived, started and gave its first token, in monotonic seconds, and who observes its end."""

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self._observer = timeline_observer.get()

    def mark_started(self) -> bool:
        """Record that a step computes some of the request; return True for the first one."""
        if self.started_at is not None:
            return False
        self.started_at = time.monotonic()
        return True

    def report_end(self, group: SequenceGroup, status: str, token_counts: tuple[int, int]) -> None:
        """Call `on_end` and the observer; `token_counts` are the tokens that were read and generated."""
        if group.request.on_end is not None:
            group.request.on_end(*token_counts)
        if self._observer is not None:
            self._observer(
                RequestTimeline(
                    group.base_id,
                    group.digest,
                    status,
                    self.arrived_at,
                    self.started_at,
                    self.first_token_at,
                    time.monotonic(),
                    *token_counts,
                )
            )


class GenerationDraft(RequestProgress):
    """The choices of a GenerateRequest, each with its random stream, and its grammar state if there is a grammar.

    The seed of the random streams is drawn here where the request has none; nothing else knows it.
    """

    def __init__(self, request: GenerateRequest, stop: StopCondition, decode: Callable[[Sequence[int]], str]) -> None:
        super().__init__()
        params = request.params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self.request = request
        self.choices = [Choice(index, params, stop, decode) for index in range(params.n)]
        self.random_streams = [RandomStream(seed, index) for index in range(params.n)]
        self.grammar_states = [
            None if request.grammar is None else GrammarState(request.grammar) for _ in range(params.n)
        ]
        self._reused: int | None = None
        self._prompt_log_probs: list[float | None] = [None]
        self._prompt_top_tokens: list[TopTokens | None] = [None]

    @classmethod
    def of(cls, request: GenerateRequest, base: BaseText, max_tokens: int) -> GenerationDraft:
        """The draft of a request to a base model, whose choices get at most `max_tokens` tokens."""
        stop = StopCondition(frozenset(stop_token_ids(base, request.params.end_ids)), max_tokens)
        return cls(request, stop, lambda ids: _decode(base, ids))

    def add_reused(self, tokens: int) -> int:
        """Record that a choice starts with tokens of a cached prefix; return those of the first choice, else 0."""
        if self._reused is not None:
            return 0
        self._reused = tokens
        return tokens

    def add_prompt_scores(
        self, start: int, log_probs: Sequence[float], top_tokens: Sequence[TopTokens], prompt_length: int
    ) -> None:
        """Add scores of the tokens behind `start`, without those of generated tokens."""
        self._prompt_log_probs[start + 1 :] = log_probs[: prompt_length - start - 1]
        self._prompt_top_tokens[start + 1 :] = top_tokens[: prompt_length - start - 1]

    def token_counts(self) -> tuple[int, int]:
        """The tokens that were read and generated so far."""
        if self.started_at is None:
            return 0, 0
        return len(self.request.prompt), sum(choice.position for choice in self.choices)

    def result(self) -> Generation:
        """The result, once all choices are finished."""
        prompt = None
        if self.request.params.prompt_logprobs:
            prompt = PromptScores(tuple(self._prompt_log_probs), tuple(self._prompt_top_tokens))
        return Generation(tuple(choice.completion() for choice in self.choices), prompt, self._reused or 0)


def _decode(base: BaseText, ids: Sequence[int]) -> str:
    """The text of ids, without special tokens."""
    text: str = base.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


class ScoreDraft(RequestProgress):
    """The windows of a ScoreRequest; `has_likelihood` is False for encoders."""

    def __init__(self, request: ScoreRequest, *, has_likelihood: bool) -> None:
        super().__init__()
        self.request = request
        self.has_likelihood = has_likelihood
        self._nll = [0.0] * len(request.windows)
        self._sums: dict[int, np.ndarray] = {}
        self._tokens: dict[int, int] = {}

    def first_scored(self, index: int) -> int:
        """The index of the first token of window `index` that is scored."""
        return self.request.starts[index] if self.request.starts else 1

    def add(self, index: int, nll: float, states: np.ndarray | None, tokens: int, *, is_first: bool) -> None:
        """Add the NLL of a segment of window `index`, and the sum (hidden,) of the states of its tokens.

        The first segment replaces what is there of a window that was preempted.
        """
        self._nll[index] = nll if is_first else self._nll[index] + nll
        if states is not None:
            self._sums[index] = states if is_first else self._sums[index] + states
            self._tokens[index] = tokens if is_first else self._tokens[index] + tokens

    def token_counts(self) -> tuple[int, int]:
        """The tokens that were read, all of them once a step computed some, and 0 generated ones."""
        return (sum(map(len, self.request.windows)) if self.started_at is not None else 0), 0

    def result(self) -> Scores:
        """The result, once all windows are scored."""
        vectors = {index: total / max(1, self._tokens[index]) for index, total in self._sums.items()}
        return Scores(tuple(self._nll) if self.has_likelihood else (), vectors)


Draft = GenerationDraft | ScoreDraft


def settle(group: SequenceGroup, draft: Draft) -> None:
    """Report the end of a request, then set the result or error of its ticket, unless that was cancelled."""
    draft.report_end(group, group.state.value, draft.token_counts())
    if not group.ticket.set_running_or_notify_cancel():
        return
    if group.state is not State.FINISHED:
        group.ticket.set_exception(group.error)
        return
    try:
        group.ticket.set_result(draft.result())
    except Exception as error:
        group.ticket.set_exception(as_soup_error(error))


def as_soup_error(error: Exception) -> SoupError:
    """Return a SoupError as it is; log any other error, and return one without its details."""
    if isinstance(error, SoupError):
        return error
    log.error("a batch failed", exc_info=error)
    wrapped = Internal("The engine failed on this request; the server's log says why.")
    wrapped.__cause__ = error
    return wrapped


def without_frames(error: SoupError) -> SoupError:
    """Remove the tracebacks of an error and its causes: they would keep the base model in memory."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error
