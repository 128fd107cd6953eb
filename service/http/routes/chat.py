"""`POST /v1/chat/completions`: the base's chat template over messages, then the same engine as completions.

A base model without a template is refused in one sentence: a conversation put together in some other way would give
answers that look right and are not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from registry.errors import InvalidParameter, InvalidPrompt
from service.engine import Completion, Delta, GenerateRequest, Generation, SamplingParams
from service.http.answers.token_text import TokenText
from service.http.auth import ModelUser
from service.http.resolve import ResolvedModel, language_model
from service.http.routes.completions import STREAM, check_sampling
from service.http.routes.tokens import check_text
from service.http.schemas.openai_answers import ChatAnswer
from service.http.schemas.openai_requests import ChatRequest
from service.http.state import State
from service.http.streaming import DONE, EventStream, TokenStream, event, finish
from service.keys import Principal
from service.parts import Parts

router = APIRouter(tags=["inference"])


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=STREAM)
async def chat_completions(request: Request, body: ChatRequest, parts: State, who: ModelUser) -> Response:
    """Answer a conversation `n` times. Without a limit an answer may fill the context."""
    model, ids = await run_in_threadpool(_prepare, parts, who, body)
    answer = ChatAnswers(body, model, ids)
    headers = {"x-soup-digest": model.fingerprint}
    if body.stream:
        stream = TokenStream(parts, [answer.request()])
        await stream.start(request)
        return EventStream(answer.stream(stream), cancel=stream.cancel, headers=headers)
    tickets = await run_in_threadpool(parts.engine.submit_all, [answer.request()])
    (generation,) = await finish(request, tickets)
    return JSONResponse(answer.whole(generation), headers=headers)


def _prepare(parts: Parts, who: Principal, body: ChatRequest) -> tuple[ResolvedModel, tuple[int, ...]]:
    check_sampling(parts, n=body.n, logprobs=body.top_logprobs, logprobs_name="top_logprobs")
    for message in body.messages:
        check_text(message.text, parts, param="messages")
    model = language_model(parts, who, body.model)
    return model, tuple(model.base.tokenize(conversation(model, body), bos=False))


def conversation(model: ResolvedModel, body: ChatRequest) -> str:
    """The messages as the text that the base's own template makes of them, which holds any BOS it wants.

    Raises InvalidParameter where there is no template, InvalidPrompt where it refuses the messages.
    """
    tokenizer = model.base.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidParameter(
            f"Base model '{model.base_id}' has no chat template; send a prompt to /v1/completions.", param="model"
        )
    messages = [
        {"role": message.role, "content": message.text} | ({} if message.name is None else {"name": message.name})
        for message in body.messages
    ]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # templates raise what they like: roles they do not know, an order they do not take
        raise InvalidPrompt(
            "The model's chat template does not take these messages; check their roles and order.", param="messages"
        ) from error


class ChatAnswers:
    """The answer to one conversation, whole or as chunks."""

    def __init__(self, body: ChatRequest, model: ResolvedModel, ids: tuple[int, ...]) -> None:
        self._body = body
        self._model = model
        self._ids = ids
        self._words = TokenText(model.base)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.fingerprint,
        }

    def request(self) -> GenerateRequest:
        """The request to the engine."""
        body = self._body
        params = SamplingParams(
            max_tokens=body.limit,
            temperature=body.temperature,
            top_p=body.top_p,
            n=body.n,
            stop=body.stops,
            seed=body.seed,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
        return GenerateRequest(self._model.base_id, self._ids, adapter=self._model.handle, params=params)

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer as one object."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(generation.choices)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage(generation)}

    async def stream(self, stream: TokenStream) -> AsyncIterator[str]:
        """The answer as server-sent events, ending with [DONE]."""
        generation: Generation | None = None
        unfinished = set(range(self._body.n))
        for index in range(self._body.n):
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
        async for _, found in stream.events():
            if isinstance(found, Generation):
                generation = found
                continue
            if found.text or self._body.logprobs:
                yield self._chunk(found.index, {"content": found.text}, logprobs=self._delta(found))
            if found.finish_reason is not None:
                unfinished.discard(found.index)
                yield self._chunk(found.index, {}, finish_reason=found.finish_reason)
        if generation is not None:
            for index in sorted(unfinished):  # nothing was generated
                yield self._chunk(index, {}, finish_reason=generation.choices[index].finish_reason)
            if self._body.include_usage:
                yield event(self._chunk_head() | {"choices": [], "usage": self._usage(generation)})
        yield DONE

    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk"}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        usage = {"usage": None} if self._body.include_usage else {}
        return event({**self._chunk_head(), "choices": [choice], **usage})

    def _logprobs(self, choice: Completion) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        rows = zip(choice.token_ids, choice.token_logprobs, choice.top_logprobs, strict=True)
        return {"content": [self._token(*row) for row in rows], "refusal": None}

    def _delta(self, delta: Delta) -> dict[str, Any] | None:
        if not self._body.logprobs or delta.logprob is None:
            return None
        return {"content": [self._token(delta.token_id, delta.logprob, delta.top)], "refusal": None}

    def _token(self, token: int, logprob: float, top: tuple[tuple[int, float], ...]) -> dict[str, Any]:
        return {
            **self._alternative(token, logprob),
            "top_logprobs": [self._alternative(other, value) for other, value in top],
        }

    def _alternative(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._words.text(token), "logprob": logprob, "bytes": self._words.data(token)}

    def _usage(self, generation: Generation) -> dict[str, int]:
        written = sum(len(choice.token_ids) for choice in generation.choices)
        return {
            "prompt_tokens": len(self._ids),
            "completion_tokens": written,
            "total_tokens": len(self._ids) + written,
        }
