"""The answers of completions and chats, in one piece or as events of a stream, from the engine's output.

For harnesses that measure likelihoods: with `echo` and `logprobs` the arrays of a completion hold every token of the
prompt (without an added BOS) and then exactly the generated ones. The first entry is null if no token precedes it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.engine import Completion, Delta, Generation, PromptScores
from service.engine.request import FinishReason, TopTokens
from service.http.answers.events import chunk, event
from service.http.answers.token_text import TokenText
from service.http.models.named_models import ResolvedModel
from service.http.schemas.generation import (
    AssistantMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatRequest,
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from service.http.schemas.wire import Usage

Row = tuple[int, float | None, TopTokens | None, int]
"""A token's id, log-probability, most likely alternatives, and the offset of its text."""
CHAT_CHUNK: Final = "chat.completion.chunk"


@dataclass(frozen=True)
class Prompt:
    """A prompt as ids, BOS included, and as the text that `echo` returns; the first `skip` ids were added."""

    ids: tuple[int, ...]
    text: str
    skip: int


def mean_logprob(choice: Completion) -> float:
    """Return the mean log-probability of a choice's tokens, EOS included; 0 for a choice without tokens."""
    return sum(choice.token_logprobs) / len(choice.token_logprobs) if choice.token_logprobs else 0.0


class CompletionAnswers:
    """Builder of the answer to one request. The choices of prompt i are numbered from i * n."""

    def __init__(self, body: CompletionRequest, model: ResolvedModel, prompts: list[Prompt]) -> None:
        self.body = body
        self.model = model
        self.prompts = prompts
        self.words = TokenText(model.base)
        self.head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, generations: list[Generation]) -> dict[str, Any]:
        """Return the answer in one piece, a CompletionAnswer as JSON; `generations` has one entry a prompt."""
        choices = [
            CompletionChoice(
                index=number * self.body.n + index,
                text=self._echoed(prompt) + choice.text,
                logprobs=self._logprobs(prompt, choice, generation.prompt),
                finish_reason=choice.finish_reason,
            )
            for number, (prompt, generation) in enumerate(zip(self.prompts, generations, strict=True))
            for index, choice in enumerate(self._returned_choices(generation))
        ]
        return CompletionAnswer(**self.head, choices=choices, usage=self.usage(generations)).model_dump()

    def _returned_choices(self, generation: Generation) -> Sequence[Completion]:
        """Return the choices to send: all, or with `best_of` those of the highest mean log-probability."""
        if not self.body.ranked:
            return generation.choices
        return sorted(generation.choices, key=mean_logprob, reverse=True)[: self.body.n]

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
        """Return the fields of CompletionLogprobs for these tokens."""
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
        """Return the alternatives, best first, and the token itself with the same float as in `token_logprobs`."""
        logprobs: dict[str, float] = {}
        for alternative, value in top:
            logprobs.setdefault(self.words.text(alternative), value)
        logprobs[self.words.text(token)] = logprob
        return logprobs

    def usage(self, generations: Collection[Generation]) -> Usage:
        """Return the usage of all prompts and choices."""
        return Usage.of(
            sum(len(prompt.ids) for prompt in self.prompts),
            sum(len(choice.token_ids) for generation in generations for choice in generation.choices),
            reused=sum(generation.reused for generation in generations),
        )


class CompletionEvents:
    """Encoder of a streamed answer; each event is a CompletionAnswer with one choice."""

    def __init__(self, answers: CompletionAnswers) -> None:
        self._answers = answers
        self._body = answers.body
        self._generations: dict[int, Generation] = {}
        self._unfinished = {
            (number, index) for number in range(len(answers.prompts)) for index in range(answers.body.n)
        }

    def first(self) -> str:
        """Return the prompt for every choice if `echo` is set."""
        if not self._body.echo:
            return ""
        return "".join(
            self._chunk(number, index, self._answers.prompts[number].text) for number, index in sorted(self._unfinished)
        )

    def encode(self, number: int, output: Delta | Generation) -> str:
        """Return the event of a token with visible text, or the ends of choices for which nothing was generated."""
        if isinstance(output, Generation):
            self._generations[number] = output
            return "".join(
                self._chunk(number, index, "", finish_reason=choice.finish_reason)
                for index, choice in enumerate(output.choices)
                if (number, index) in self._unfinished
            )
        if output.finish_reason is not None:
            self._unfinished.discard((number, output.index))
        elif not output.text and self._body.logprobs is None:
            return ""
        row = (output.token_id, output.logprob, output.top, output.offset)
        logprobs = None if self._body.logprobs is None else self._answers.arrays([row])
        return self._chunk(number, output.index, output.text, finish_reason=output.finish_reason, logprobs=logprobs)

    def last(self) -> str:
        """Return the event with `usage` if the client asked for it."""
        if not self._body.include_usage:
            return ""
        usage = self._answers.usage(self._generations.values())
        return event(CompletionAnswer(**self._answers.head, choices=[], usage=usage))

    def _chunk(
        self,
        number: int,
        index: int,
        text: str,
        *,
        finish_reason: FinishReason | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        index += number * self._body.n
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return chunk(self._answers.head, choice, usage=self._body.include_usage)


# --- chats --------------------------------------------------------------------------------------------


class ChatAnswers:
    """Builder of the answer to one conversation, whose prompt has `prompt_tokens` tokens."""

    def __init__(self, body: ChatRequest, model: ResolvedModel, prompt_tokens: int) -> None:
        self.body = body
        self.model = model
        self._prompt_tokens = prompt_tokens
        self.words = TokenText(model.base)
        self.head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, generations: list[Generation]) -> dict[str, Any]:
        """Return the answer in one piece: a ChatAnswer as JSON, with `object` after the head as in the chunks."""
        (generation,) = generations
        choices = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                logprobs=self._logprobs(choice),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(generation.choices)
        ]
        return self.head | ChatAnswer(**self.head, choices=choices, usage=self.usage(generation)).model_dump()

    def _logprobs(self, choice: Completion) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        rows = zip(choice.token_ids, choice.token_logprobs, choice.top_logprobs, strict=True)
        return ChatLogprobs(**self.content(rows))

    def content(self, rows: Iterable[tuple[int, float, TopTokens]]) -> dict[str, Any]:
        """Return the fields of ChatLogprobs for rows of (token, log-probability, alternatives)."""
        content = [
            {**self._token(token, logprob), "top_logprobs": [self._token(*alternative) for alternative in top]}
            for token, logprob, top in rows
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.words.text(token), "logprob": logprob, "bytes": self.words.data(token)}

    def usage(self, generation: Generation) -> Usage:
        """Return the usage of the prompt and all choices."""
        written = sum(len(choice.token_ids) for choice in generation.choices)
        return Usage.of(self._prompt_tokens, written, reused=generation.reused)


class ChatEvents:
    """Encoder of a streamed answer; each event is a ChatChunk with one choice: its role, a token's text, or its end."""

    def __init__(self, answers: ChatAnswers) -> None:
        self._answers = answers
        self._unfinished = set(range(answers.body.n))
        self._generation: Generation | None = None

    def first(self) -> str:
        """Return the role for every choice."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return "".join(self._chunk(index, delta) for index in sorted(self._unfinished))

    def encode(self, _number: int, output: Delta | Generation) -> str:
        """Return the events of a token with visible text and of a choice's end."""
        if isinstance(output, Generation):
            self._generation = output
            return "".join(  # the ends of choices for which nothing was generated
                self._chunk(index, {}, finish_reason=output.choices[index].finish_reason)
                for index in sorted(self._unfinished)
            )
        events = ""
        if output.text or self._answers.body.logprobs:
            events = self._chunk(output.index, {"content": output.text}, logprobs=self._logprobs(output))
        if output.finish_reason is not None:
            self._unfinished.discard(output.index)
            events += self._chunk(output.index, {}, finish_reason=output.finish_reason)
        return events

    def last(self) -> str:
        """Return the event with `usage` if the client asked for it."""
        if not self._answers.body.include_usage or self._generation is None:
            return ""
        usage = self._answers.usage(self._generation)
        return event(ChatChunk(**self._answers.head, object=CHAT_CHUNK, choices=[], usage=usage))

    def _logprobs(self, token: Delta) -> dict[str, Any] | None:
        if not self._answers.body.logprobs or token.logprob is None:
            return None
        return self._answers.content([(token.token_id, token.logprob, token.top)])

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, str | None],
        *,
        finish_reason: FinishReason | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        head = {**self._answers.head, "object": CHAT_CHUNK}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return chunk(head, choice, usage=self._answers.body.include_usage)
