"""The answer of `POST /v1/chat/completions`, whole or as the events of a stream, from what the engine generated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any, Final

from service.engine import Completion, Delta, Generation
from service.engine.request import FinishReason, TopTokens
from service.http.answers.events import JSON, Chunks, event
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
    """Answers to one conversation, whose prompt has `read` tokens."""

    def __init__(self, body: ChatRequest, model: ResolvedModel, read: int) -> None:
        self.body = body
        self.model = model
        self._read = read
        self.words = TokenText(model.base)
        self.head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.asked,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece: a ChatAnswer as JSON, `object` after the head as in the chunks."""
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

    def events(self) -> ChatEvents:
        """The answer in pieces."""
        return ChatEvents(self)

    def _logprobs(self, choice: Completion) -> ChatLogprobs | None:
        """Of all tokens of a choice; None where the client did not ask."""
        if not self.body.logprobs:
            return None
        rows = zip(choice.token_ids, choice.token_logprobs, choice.top_logprobs, strict=True)
        return ChatLogprobs(**self.content(rows))

    def content(self, rows: Iterable[tuple[int, float, TopTokens]]) -> dict[str, Any]:
        """The fields of ChatLogprobs, of (token, log-probability, alternatives) rows."""
        content = [
            {**self._token(token, logprob), "top_logprobs": [self._token(*other) for other in top]}
            for token, logprob, top in rows
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.words.text(token), "logprob": logprob, "bytes": self.words.data(token)}

    def usage(self, generation: Generation) -> Usage:
        """Of the prompt and all choices."""
        written = sum(len(choice.token_ids) for choice in generation.choices)
        return Usage.of(self._read, written, reused=generation.reused)


class ChatEvents:
    """An answer in pieces, each a ChatChunk with one choice: its role, what a token shows, its end.

    `usage` is unset unless the client asked for it. The fields of a choice are put together as text: this is done for
    every token.
    """

    def __init__(self, answers: ChatAnswers) -> None:
        self._answers = answers
        self._chunks = Chunks({**answers.head, "object": OBJECT}, usage=answers.body.include_usage)
        self._unfinished = set(range(answers.body.n))
        self._generation: Generation | None = None

    def first(self) -> str:
        """The role, for every choice."""
        delta = '{"role": "assistant", "content": "", "refusal": null}'
        return "".join(self._chunk(index, delta) for index in sorted(self._unfinished))

    def of(self, _number: int, found: Delta | Generation) -> str:
        """Of a token that shows, and of a choice's end."""
        if isinstance(found, Generation):
            self._generation = found
            return "".join(  # nothing was generated
                self._chunk(index, "{}", finish_reason=found.choices[index].finish_reason)
                for index in sorted(self._unfinished)
            )
        events = ""
        if found.text or self._answers.body.logprobs:
            events = self._chunk(found.index, f'{{"content": {JSON.encode(found.text)}}}', logprobs=self._of(found))
        if found.finish_reason is not None:
            self._unfinished.discard(found.index)
            events += self._chunk(found.index, "{}", finish_reason=found.finish_reason)
        return events

    def last(self) -> str:
        """`usage`, where the client asked for it."""
        if not self._answers.body.include_usage or self._generation is None:
            return ""
        usage = self._answers.usage(self._generation)
        return event(ChatChunk(**self._answers.head, object=OBJECT, choices=[], usage=usage))

    def _of(self, token: Delta) -> str:
        if not self._answers.body.logprobs or token.logprob is None:
            return "null"
        return JSON.encode(self._answers.content([(token.token_id, token.logprob, token.top)]))

    def _chunk(
        self, index: int, delta: str, *, finish_reason: FinishReason | None = None, logprobs: str = "null"
    ) -> str:
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        return self._chunks.of(
            f'{{"index": {index}, "delta": {delta}, "logprobs": {logprobs}, "finish_reason": {reason}}}'
        )
