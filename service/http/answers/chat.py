"""The answer of `POST /v1/chat/completions`, in one piece or as events of a stream, from the engine's output."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from service.engine import Completion, Delta, Generation
from service.engine.request import FinishReason, TopTokens
from service.http.answers.events import chunk, event
from service.http.answers.token_text import TokenText
from service.http.models.named_models import ResolvedModel
from service.http.schemas.chat import (
    AssistantMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatRequest,
)
from service.http.schemas.wire import Usage

OBJECT: Final = "chat.completion.chunk"


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
        return event(ChatChunk(**self._answers.head, object=OBJECT, choices=[], usage=usage))

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
        head = {**self._answers.head, "object": OBJECT}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return chunk(head, choice, usage=self._answers.body.include_usage)
