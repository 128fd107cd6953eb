"""Drafts of answers: what the engine has computed of a request so far, and the result of its ticket.

Used by the engine's thread only. Results and errors are set outside of its lock, because code that waits for a ticket
may submit again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import numpy as np

from registry.base_model import BaseText
from service.engine.answer_choice import Choice, StopCondition
from service.engine.grammars import Grammar, Grammars, GrammarState
from service.engine.progress import RequestProgress, as_soup_error
from service.engine.request import (
    GenerateRequest,
    Generation,
    PromptScores,
    ScoreRequest,
    Scores,
    State,
    TopTokens,
)
from service.engine.sampler import RandomStream
from service.engine.steps import SequenceGroup
from service.engine.text_support import stop_token_ids


class GenerationDraft(RequestProgress):
    """The choices of a GenerateRequest, each with its random stream, and its grammar state if there is a grammar.

    The seed of the random streams is drawn here where the request has none; nothing else knows it.
    """

    def __init__(
        self,
        request: GenerateRequest,
        stop: StopCondition,
        decode: Callable[[Sequence[int]], str],
        grammar: Grammar | None = None,
    ) -> None:
        super().__init__()
        params = request.params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self.request = request
        self.choices = [Choice(index, params, stop, decode, prompt=request.prompt) for index in range(params.n)]
        self.random_streams = [RandomStream(seed, index) for index in range(params.n)]
        self.grammar_states = [None if grammar is None else GrammarState(grammar) for _ in range(params.n)]
        self._reused: int | None = None
        self._prompt_log_probs: list[float | None] = [None]
        self._prompt_top_tokens: list[TopTokens | None] = [None]

    @classmethod
    def of(cls, request: GenerateRequest, base: BaseText, max_tokens: int, grammars: Grammars) -> GenerationDraft:
        """The draft of a request to a base model, whose choices get at most `max_tokens` tokens.

        Raises InvalidParameter for a schema that cannot be followed.
        """
        stop_ids = stop_token_ids(base, request.params.end_ids)
        grammar = None if request.schema is None else grammars.compile(base, stop_ids, request.schema)
        return cls(request, StopCondition(frozenset(stop_ids), max_tokens), lambda ids: _decode(base, ids), grammar)

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
    """Set the result or error of an ended request's ticket, unless that was cancelled."""
    if not group.ticket.set_running_or_notify_cancel():
        return
    if group.state is not State.FINISHED:
        group.ticket.set_exception(group.error)
        return
    try:
        group.ticket.set_result(draft.result())
    except Exception as error:
        group.ticket.set_exception(as_soup_error(error))
