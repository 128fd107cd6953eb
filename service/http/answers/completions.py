"""The answer of `POST /v1/completions`, whole or as the events of a stream, from what the engine generated.

For harnesses that measure likelihoods: with `echo` and `logprobs` the arrays hold every token of the prompt (without
a BOS that was put in front) and then exactly the generated ones; the first entry is null where nothing precedes it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from service.engine import Completion, Delta, Generation, PromptScores
from service.engine.request import FinishReason, TopTokens
from service.http.answers.events import JSON, Chunks, event
from service.http.answers.token_text import TokenText
from service.http.models.named_models import ResolvedModel
from service.http.schemas.completions import CompletionAnswer, CompletionChoice, CompletionLogprobs, CompletionRequest
from service.http.schemas.wire import Usage

Row = tuple[int, float | None, TopTokens | None, int]
"""A token's id, log-probability, most likely alternatives, and where its text begins."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as ids, BOS included, and as the text that `echo` gives back; `skip` tokens were put in front."""

    ids: tuple[int, ...]
    text: str
    skip: int


def mean_logprob(choice: Completion) -> float:
    """Mean log-probability of a choice's tokens, its EOS included; 0 where no tokens were asked for."""
    return sum(choice.token_logprobs) / len(choice.token_logprobs) if choice.token_logprobs else 0.0


class CompletionAnswers:
    """Answers to one request. The choices of prompt i are numbered from i * n."""

    def __init__(self, body: CompletionRequest, model: ResolvedModel, prompts: list[Prompt]) -> None:
        self.body = body
        self.model = model
        self.prompts = prompts
        self.words = TokenText(model.base)
        self.head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.asked,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, generations: list[Generation]) -> CompletionAnswer:
        """The answer in one piece; `generations` has one entry a prompt."""
        choices = [
            CompletionChoice(
                index=number * self.body.n + index,
                text=self._echoed(prompt) + choice.text,
                logprobs=self._logprobs(prompt, choice, generation.prompt),
                finish_reason=choice.finish_reason,
            )
            for number, (prompt, generation) in enumerate(zip(self.prompts, generations, strict=True))
            for index, choice in enumerate(self._given(generation))
        ]
        return CompletionAnswer(**self.head, choices=choices, usage=self.usage(generations))

    def _given(self, generation: Generation) -> Sequence[Completion]:
        """The choices to give back of those generated: all, or the best, of equal ones the first."""
        if not self.body.ranked:
            return generation.choices
        return sorted(generation.choices, key=mean_logprob, reverse=True)[: self.body.n]

    def events(self) -> CompletionEvents:
        """The answer in pieces."""
        return CompletionEvents(self)

    def _echoed(self, prompt: Prompt) -> str:
        return prompt.text if self.body.echo else ""

    def _logprobs(self, prompt: Prompt, choice: Completion, scores: PromptScores | None) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        start = len(self._echoed(prompt))
        offsets = [start + offset for offset in choice.text_offsets]
        rows: list[Row] = list(zip(choice.token_ids, choice.token_logprobs, choice.top_logprobs, offsets, strict=True))
        if scores is not None:
            ids = prompt.ids[prompt.skip :]
            logprobs, tops = scores.token_logprobs[prompt.skip :], scores.top_logprobs[prompt.skip :]
            rows = [*zip(ids, logprobs, tops, self.words.offsets(ids), strict=True), *rows]
        return CompletionLogprobs(**self.arrays(rows))

    def arrays(self, rows: list[Row]) -> dict[str, Any]:
        """The fields of CompletionLogprobs."""
        return {
            "tokens": [self.words.text(token) for token, _, _, _ in rows],
            "token_logprobs": [logprob for _, logprob, _, _ in rows],
            "top_logprobs": [
                None if top is None or logprob is None else self._top(token, logprob, top)
                for token, logprob, top, _ in rows
            ],
            "text_offset": [offset for _, _, _, offset in rows],
        }

    def _top(self, token: int, logprob: float, top: TopTokens) -> dict[str, float]:
        """The alternatives, best first, and the token itself, whose float is the very same in both places."""
        found: dict[str, float] = {}
        for other, value in (*top, (token, logprob)):
            found.setdefault(self.words.text(other), value)
        return found

    def usage(self, generations: Collection[Generation]) -> Usage:
        """Of all prompts and choices."""
        return Usage.of(
            sum(len(prompt.ids) for prompt in self.prompts),
            sum(len(choice.token_ids) for generation in generations for choice in generation.choices),
            reused=sum(generation.reused for generation in generations),
        )


class CompletionEvents:
    """An answer in pieces, each a CompletionAnswer with one choice; `usage` is unset unless the client asked for it.

    The fields of a choice are put together as text: this is done for every token.
    """

    def __init__(self, answers: CompletionAnswers) -> None:
        self._answers = answers
        self._body = answers.body
        self._chunks = Chunks(answers.head, usage=answers.body.include_usage)
        self._generations: dict[int, Generation] = {}
        self._unfinished = {
            (number, index) for number in range(len(answers.prompts)) for index in range(answers.body.n)
        }

    def first(self) -> str:
        """With `echo` the prompt, for every choice."""
        if not self._body.echo:
            return ""
        return "".join(
            self._chunk(number, index, self._answers.prompts[number].text) for number, index in sorted(self._unfinished)
        )

    def of(self, number: int, found: Delta | Generation) -> str:
        """Of a token that shows; of a prompt's end where nothing was generated."""
        if isinstance(found, Generation):
            self._generations[number] = found
            return "".join(
                self._chunk(number, index, "", finish_reason=choice.finish_reason)
                for index, choice in enumerate(found.choices)
                if (number, index) in self._unfinished
            )
        if found.finish_reason is not None:
            self._unfinished.discard((number, found.index))
        elif not found.text and self._body.logprobs is None:
            return ""
        logprobs = "null"
        if self._body.logprobs is not None:
            row = (found.token_id, found.logprob, found.top, found.offset)
            logprobs = JSON.encode(self._answers.arrays([row]))
        return self._chunk(number, found.index, found.text, finish_reason=found.finish_reason, logprobs=logprobs)

    def last(self) -> str:
        """`usage`, where the client asked for it."""
        if not self._body.include_usage:
            return ""
        usage = self._answers.usage(self._generations.values())
        return event(CompletionAnswer(**self._answers.head, choices=[], usage=usage))

    def _chunk(
        self, number: int, index: int, text: str, *, finish_reason: FinishReason | None = None, logprobs: str = "null"
    ) -> str:
        index += number * self._body.n
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        return self._chunks.of(
            f'{{"index": {index}, "text": {JSON.encode(text)}, "logprobs": {logprobs}, "finish_reason": {reason}}}'
        )
