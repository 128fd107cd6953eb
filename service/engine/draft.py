"""Answers in the making: what the engine has computed of a request so far. Used by the engine thread only."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import numpy as np

from service.engine.choice import Choice, Ending
from service.engine.request import GenerateRequest, Generation, PromptScores, ScoreRequest, Scores
from service.engine.sampler import Stream


class GenerationDraft:
    """The choices of a GenerateRequest, each with its own random stream."""

    def __init__(self, request: GenerateRequest, ending: Ending, decode: Callable[[Sequence[int]], str]) -> None:
        params = request.params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self.request = request
        self.choices = [Choice(index, params, ending, decode) for index in range(params.n)]
        self.streams = [Stream(seed, index) for index in range(params.n)]
        self.newest = [0] * params.n
        """The last token of each choice, which the next step feeds."""
        self.prompt: PromptScores | None = None

    def result(self) -> Generation:
        """The answer, once every choice is finished."""
        return Generation(tuple(choice.completion() for choice in self.choices), self.prompt)


class ScoreDraft:
    """The windows of a ScoreRequest."""

    def __init__(self, request: ScoreRequest) -> None:
        self.request = request
        self.nll: list[float | None] = [None] * len(request.windows)
        self.vectors: dict[int, np.ndarray] = {}

    def take(self, index: int, nll: float | None, vector: np.ndarray) -> None:
        """What became of window `index`, without NLL of an encoder; `vector` (hidden,) is kept where it was wanted."""
        self.nll[index] = nll
        if index in self.request.pooled:
            self.vectors[index] = vector.copy()

    def result(self) -> Scores:
        """The answer, once every window is scored."""
        return Scores(tuple(nll for nll in self.nll if nll is not None), self.vectors)


Draft = GenerationDraft | ScoreDraft
