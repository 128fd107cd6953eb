"""Answers in the making: what the engine has computed of a request so far, and how its ticket gets the answer.

Used by the engine thread only. Answers and errors are given outside of its lock: whoever waits for a ticket may submit
again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np

from registry.base_model import BaseText
from registry.errors import Internal, SoupError
from service.engine.choice import Choice, StopCondition
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

log = logging.getLogger(__name__)


class RequestProgress:
    """How far a request is: when it `came`, when a step first had a part of it, its first token, and who is told.

    All moments are monotonic seconds.
    """

    def __init__(self) -> None:
        self.came = time.monotonic()
        self.began: float | None = None
        self.first: float | None = None
        """When the first token was drawn."""
        self.told = timeline_observer.get()

    def begin_part(self) -> bool:
        """A step has a part of the request; whether it is the first one."""
        if self.began is not None:
            return False
        self.began = time.monotonic()
        return True

    def tell_end(self, group: SequenceGroup, end: str, counted: tuple[int, int]) -> None:
        """Tell who counts and who watches how the request ended, with the tokens read and written."""
        if group.request.on_end is not None:
            group.request.on_end(*counted)
        if self.told is not None:
            base_id, adapter = group.key
            self.told(
                RequestTimeline(base_id, adapter, end, self.came, self.began, self.first, time.monotonic(), *counted)
            )


class GenerationDraft(RequestProgress):
    """The choices of a GenerateRequest, each with its own random stream, and its own walk where there is a grammar."""

    def __init__(self, request: GenerateRequest, ending: StopCondition, decode: Callable[[Sequence[int]], str]) -> None:
        super().__init__()
        params = request.params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self.request = request
        self.choices = [Choice(index, params, ending, decode) for index in range(params.n)]
        self.streams = [RandomStream(seed, index) for index in range(params.n)]
        self.walks = [None if request.grammar is None else GrammarState(request.grammar) for _ in range(params.n)]
        self._reused: int | None = None
        self._chosen: list[float | None] = [None]
        self._tops: list[TopTokens | None] = [None]

    @classmethod
    def of(cls, request: GenerateRequest, base: BaseText, limit: int) -> GenerationDraft:
        """The draft of a request to a base model, whose choices end with at most `limit` tokens."""
        ending = StopCondition(frozenset(stop_token_ids(base, request.params.end_ids)), limit)
        return cls(request, ending, lambda ids: _decoded(base, ids))

    def begin(self, reused: int) -> int:
        """A choice begins, with so many tokens of an earlier request. Gives those that count: the first choice's."""
        if self._reused is not None:
            return 0
        self._reused = reused
        return reused

    def take_prompt(self, start: int, chosen: Sequence[float], tops: Sequence[TopTokens], prompt: int) -> None:
        """Scores of the prompt's tokens behind `start`, without those of tokens behind the first `prompt` ones."""
        self._chosen[start + 1 :] = chosen[: prompt - start - 1]
        self._tops[start + 1 :] = tops[: prompt - start - 1]

    def counted(self) -> tuple[int, int]:
        """The tokens that were read, and those that were generated, so far."""
        if self.began is None:
            return 0, 0
        return len(self.request.prompt), sum(choice.position for choice in self.choices)

    def result(self) -> Generation:
        """The answer, once every choice is finished."""
        scored = self.request.params.prompt_logprobs
        prompt = PromptScores(tuple(self._chosen), tuple(self._tops)) if scored else None
        return Generation(tuple(choice.completion() for choice in self.choices), prompt, self._reused or 0)


def _decoded(base: BaseText, ids: Sequence[int]) -> str:
    """The text of ids, special tokens left out."""
    text: str = base.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


class ScoreDraft(RequestProgress):
    """The windows of a ScoreRequest; `speaks` says that the base model has likelihoods."""

    def __init__(self, request: ScoreRequest, *, speaks: bool) -> None:
        super().__init__()
        self.request = request
        self.speaks = speaks
        self._nll = [0.0] * len(request.windows)
        self._sums: dict[int, np.ndarray] = {}
        self._tokens: dict[int, int] = {}

    def take(self, index: int, nll: float, states: np.ndarray | None, tokens: int, *, first: bool) -> None:
        """What came of a part of window `index`: its NLL, and the sum (hidden,) of the states of so many tokens.

        The `first` part begins anew, where the window was begun before.
        """
        self._nll[index] = nll if first else self._nll[index] + nll
        if states is not None:
            self._sums[index] = states if first else self._sums[index] + states
            self._tokens[index] = tokens if first else self._tokens[index] + tokens

    def counted(self) -> tuple[int, int]:
        """The tokens that were read; all of them once a step had some."""
        return (sum(map(len, self.request.windows)) if self.began is not None else 0), 0

    def result(self) -> Scores:
        """The answer, once every window is scored."""
        vectors = {index: total / max(1, self._tokens[index]) for index, total in self._sums.items()}
        return Scores(tuple(self._nll) if self.speaks else (), vectors)


Draft = GenerationDraft | ScoreDraft


def answer(group: SequenceGroup, draft: Draft) -> None:
    """Give an ended request's ticket its answer or error; a cancelled one has none. What it took is told before."""
    draft.tell_end(group, group.state.value, draft.counted())
    if not group.ticket.set_running_or_notify_cancel():
        return
    if group.state is not State.FINISHED:
        group.ticket.set_exception(group.error)
        return
    try:
        group.ticket.set_result(draft.result())
    except Exception as error:
        group.ticket.set_exception(as_soup(error))


def as_soup(error: Exception) -> SoupError:
    """An error of ours as it is; any other is logged, and the caller hears of it without its details."""
    if isinstance(error, SoupError):
        return error
    log.error("a batch failed", exc_info=error)
    wrapped = Internal("The engine failed on this request; the server's log says why.")
    wrapped.__cause__ = error
    return wrapped


def without_frames(error: SoupError) -> SoupError:
    """The error without its tracebacks: they would keep the base model in memory for as long as somebody has it."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
