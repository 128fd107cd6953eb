"""The answer of `POST /v1/chat/completions`, whole or as the chunks of a stream, from what the engine generated."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

from service.engine import Delta, Generation
from service.engine.request import FinishReason, TopTokens
from service.http.answers.token_text import TokenText
from service.http.named_models import ResolvedModel
from service.http.schemas.chat import (
    AssistantMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    TokenLogprob,
    TopLogprob,
)
from service.http.schemas.wire import Usage


class ChatAnswers:
    """Answers to one conversation, whose prompt has `read` tokens."""

    def __init__(self, body: ChatRequest, model: ResolvedModel, read: int) -> None:
        self._body = body
        self._read = read
        self._words = TokenText(model.base)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece: a ChatAnswer as JSON, `object` after the head as in the chunks."""
        choices = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                logprobs=self._logprobs(zip(choice.token_ids, choice.token_logprobs, choice.top_logprobs, strict=True)),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(generation.choices)
        ]
        return self._head | ChatAnswer(**self._head, choices=choices, usage=self._usage(generation)).model_dump()

    async def chunks(self, tokens: AsyncIterator[tuple[int, Delta | Generation]]) -> AsyncIterator[ChatChunk]:
        """The answer in pieces: the role, one a token that shows, the end, and `usage` where it was asked for."""
        unfinished = set(range(self._body.n))
        for index in range(self._body.n):
            yield self._chunk(index, ChatDelta(role="assistant", content="", refusal=None))
        async for _, found in tokens:
            if isinstance(found, Generation):
                for index in sorted(unfinished):  # nothing was generated
                    yield self._chunk(index, ChatDelta(), finish_reason=found.choices[index].finish_reason)
                if self._body.include_usage:
                    yield ChatChunk(**self._head, object="chat.completion.chunk", choices=[], usage=self._usage(found))
                continue
            if found.text or self._body.logprobs:
                rows = [] if found.logprob is None else [(found.token_id, found.logprob, found.top)]
                logprobs = self._logprobs(rows) if rows else None
                yield self._chunk(found.index, ChatDelta(content=found.text), logprobs=logprobs)
            if found.finish_reason is not None:
                unfinished.discard(found.index)
                yield self._chunk(found.index, ChatDelta(), finish_reason=found.finish_reason)

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        *,
        finish_reason: FinishReason | None = None,
        logprobs: ChatLogprobs | None = None,
    ) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        usage: dict[str, Any] = {"usage": None} if self._body.include_usage else {}
        return ChatChunk(**self._head, object="chat.completion.chunk", choices=[choice], **usage)

    def _logprobs(self, rows: Iterable[tuple[int, float, TopTokens]]) -> ChatLogprobs | None:
        """Of (token, log-probability, alternatives) rows; None where the client did not ask."""
        if not self._body.logprobs:
            return None
        content = [
            TokenLogprob(
                **self._token(token, logprob), top_logprobs=[TopLogprob(**self._token(*other)) for other in top]
            )
            for token, logprob, top in rows
        ]
        return ChatLogprobs(content=content, refusal=None)

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._words.text(token), "logprob": logprob, "bytes": self._words.data(token)}

    def _usage(self, generation: Generation) -> Usage:
        written = sum(len(choice.token_ids) for choice in generation.choices)
        return Usage.of(self._read, written, reused=generation.reused)
