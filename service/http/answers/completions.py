"""The answer of `POST /v1/completions`, whole or as the chunks of a stream, from what the engine generated.

For harnesses that measure likelihoods: with `echo` and `logprobs` the arrays hold every token of the prompt (without
a BOS that was put in front) and then exactly the generated ones; the first entry is null where nothing precedes it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from service.engine import Completion, Delta, Generation, PromptScores
from service.engine.request import FinishReason, TopTokens
from service.http.answers.token_text import TokenText
from service.http.named_models import ResolvedModel
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
        self._body = body
        self._prompts = prompts
        self._words = TokenText(model.base)
        self._head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, generations: list[Generation]) -> CompletionAnswer:
        """The answer in one piece; `generations` has one entry a prompt."""
        choices = [
            CompletionChoice(
                index=number * self._body.n + index,
                text=self._echoed(prompt) + choice.text,
                logprobs=self._logprobs(prompt, choice, generation.prompt),
                finish_reason=choice.finish_reason,
            )
            for number, (prompt, generation) in enumerate(zip(self._prompts, generations, strict=True))
            for index, choice in enumerate(self._given(generation))
        ]
        return CompletionAnswer(**self._head, choices=choices, usage=self._usage(generations))

    def _given(self, generation: Generation) -> Sequence[Completion]:
        """The choices to give back of those generated: all, or the best, of equal ones the first."""
        if not self._body.ranked:
            return generation.choices
        return sorted(generation.choices, key=mean_logprob, reverse=True)[: self._body.n]

    async def chunks(self, tokens: AsyncIterator[tuple[int, Delta | Generation]]) -> AsyncIterator[CompletionAnswer]:
        """The answer in pieces, one a token that shows; `usage` is unset unless the client asked for it."""
        generations: dict[int, Generation] = {}
        unfinished = {(number, index) for number in range(len(self._prompts)) for index in range(self._body.n)}
        if self._body.echo:
            for number, index in sorted(unfinished):
                yield self._chunk(number, index, self._prompts[number].text)
        async for number, found in tokens:
            if isinstance(found, Generation):
                generations[number] = found
                for index, choice in enumerate(found.choices):
                    if (number, index) in unfinished:  # nothing was generated
                        yield self._chunk(number, index, "", finish_reason=choice.finish_reason)
                continue
            if found.finish_reason is not None:
                unfinished.discard((number, found.index))
            if found.text or found.finish_reason is not None or self._body.logprobs is not None:
                yield self._chunk(
                    number, found.index, found.text, finish_reason=found.finish_reason, logprobs=self._of(found)
                )
        if self._body.include_usage:
            yield CompletionAnswer(**self._head, choices=[], usage=self._usage(generations.values()))

    def _chunk(
        self,
        number: int,
        index: int,
        text: str,
        *,
        finish_reason: FinishReason | None = None,
        logprobs: CompletionLogprobs | None = None,
    ) -> CompletionAnswer:
        choice = CompletionChoice(
            index=number * self._body.n + index, text=text, logprobs=logprobs, finish_reason=finish_reason
        )
        usage: dict[str, Any] = {"usage": None} if self._body.include_usage else {}
        return CompletionAnswer(**self._head, choices=[choice], **usage)

    def _echoed(self, prompt: Prompt) -> str:
        return prompt.text if self._body.echo else ""

    def _logprobs(self, prompt: Prompt, choice: Completion, scores: PromptScores | None) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        start = len(self._echoed(prompt))
        offsets = [start + offset for offset in choice.text_offsets]
        rows: list[Row] = list(zip(choice.token_ids, choice.token_logprobs, choice.top_logprobs, offsets, strict=True))
        if scores is not None:
            ids = prompt.ids[prompt.skip :]
            logprobs, tops = scores.token_logprobs[prompt.skip :], scores.top_logprobs[prompt.skip :]
            rows = [*zip(ids, logprobs, tops, self._words.offsets(ids), strict=True), *rows]
        return self._arrays(rows)

    def _of(self, token: Delta) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        return self._arrays([(token.token_id, token.logprob, token.top, token.offset)])

    def _arrays(self, rows: list[Row]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tokens=[self._words.text(token) for token, _, _, _ in rows],
            token_logprobs=[logprob for _, logprob, _, _ in rows],
            top_logprobs=[
                None if top is None or logprob is None else self._top(token, logprob, top)
                for token, logprob, top, _ in rows
            ],
            text_offset=[offset for _, _, _, offset in rows],
        )

    def _top(self, token: int, logprob: float, top: TopTokens) -> dict[str, float]:
        """The alternatives, best first, and the token itself, whose float is the very same in both places."""
        found: dict[str, float] = {}
        for other, value in (*top, (token, logprob)):
            found.setdefault(self._words.text(other), value)
        return found

    def _usage(self, generations: Collection[Generation]) -> Usage:
        return Usage.of(
            sum(len(prompt.ids) for prompt in self._prompts),
            sum(len(choice.token_ids) for generation in generations for choice in generation.choices),
            reused=sum(generation.reused for generation in generations),
        )
