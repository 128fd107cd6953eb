"""`POST /v1/completions`: continue texts or token ids, as OpenAI's endpoint does.

For harnesses that measure likelihoods: with `echo` and `logprobs` the arrays hold every token of the prompt plus
exactly the generated ones, the first entry null (METHODS section 6).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from registry.errors import InvalidParameter, InvalidPrompt, TooLarge
from service.engine import Completion, Delta, GenerateRequest, Generation, PromptScores, SamplingParams
from service.engine.texts import has_bos
from service.http.answers.token_text import TokenText
from service.http.auth import ModelUser
from service.http.resolve import ResolvedModel, language_model
from service.http.routes.tokens import check_ids, check_text
from service.http.schemas.openai_answers import CompletionAnswer
from service.http.schemas.openai_requests import CompletionRequest
from service.http.state import State
from service.http.streaming import DONE, EventStream, TokenStream, event, finish
from service.keys import Principal
from service.parts import Parts

router = APIRouter(tags=["inference"])
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "JSON, or a stream of it."}
}


@dataclass(frozen=True)
class Prompt:
    """A prompt as ids, BOS included, and as the text that `echo` gives back; `skip` tokens were put in front."""

    ids: tuple[int, ...]
    text: str
    skip: int


@router.post("/v1/completions", response_model=CompletionAnswer, responses=STREAM)
async def completions(request: Request, body: CompletionRequest, parts: State, who: ModelUser) -> Response:
    """Continue one prompt or several, `n` times each. The choices of prompt i are numbered from i * n."""
    model, prompts = await run_in_threadpool(_prepare, parts, who, body)
    answer = Answers(body, model, prompts)
    requests = answer.requests()
    headers = {"x-soup-digest": model.fingerprint}
    if body.stream:
        stream = TokenStream(parts, requests)
        await stream.start(request)
        return EventStream(answer.stream(stream), cancel=stream.cancel, headers=headers)
    tickets = await run_in_threadpool(parts.engine.submit_all, requests)
    generations = await finish(request, tickets)
    return JSONResponse(answer.whole(generations), headers=headers)


def check_sampling(parts: Parts, *, n: int, logprobs: int | None, logprobs_name: str) -> None:
    """Raises InvalidParameter where `n` or the alternatives per token go beyond the settings."""
    settings = parts.settings
    if n > settings.max_choices:
        raise InvalidParameter(f"'n' is {n}; at most {settings.max_choices} are given.", param="n")
    if logprobs is not None and logprobs > settings.max_logprobs:
        raise InvalidParameter(
            f"'{logprobs_name}' is {logprobs}; at most {settings.max_logprobs} are given.", param=logprobs_name
        )


def _prepare(parts: Parts, who: Principal, body: CompletionRequest) -> tuple[ResolvedModel, list[Prompt]]:
    """Everything that can be refused before the engine is asked."""
    check_sampling(parts, n=body.n, logprobs=body.logprobs, logprobs_name="logprobs")
    if body.stream and body.echo and body.logprobs is not None:
        raise InvalidParameter("'echo' with 'logprobs' cannot be streamed; leave 'stream' out.", param="stream")
    limit = parts.settings.max_prompts
    if len(body.prompts) > limit:
        raise TooLarge(f"The request has {len(body.prompts)} prompts; at most {limit} are taken.", param="prompt")
    if not body.prompts or not all(body.prompts):
        raise InvalidPrompt("The prompt is empty: send some text, or at least one token id.", param="prompt")
    for given in body.prompts:
        check_text(given, parts, param="prompt")
    model = language_model(parts, who, body.model)
    return model, [_prompt(model, given) for given in body.prompts]


def _prompt(model: ResolvedModel, given: str | list[int]) -> Prompt:
    base = model.base
    if isinstance(given, str):
        ids = tuple(base.tokenize(given))
        return Prompt(ids=ids, text=given, skip=int(has_bos(base)))
    check_ids(given, model, param="prompt")
    return Prompt(ids=tuple(given), text=TokenText(base).decode(given), skip=0)


class Answers:
    """The answer to one request, whole or as chunks."""

    def __init__(self, body: CompletionRequest, model: ResolvedModel, prompts: list[Prompt]) -> None:
        self._body = body
        self._model = model
        self._prompts = prompts
        self._words = TokenText(model.base)
        self._head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.fingerprint,
        }

    def requests(self) -> list[GenerateRequest]:
        """One request to the engine per prompt."""
        body = self._body
        params = SamplingParams(
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            n=body.n,
            stop=body.stops,
            seed=body.seed,
            logprobs=body.logprobs,
            prompt_logprobs=body.echo and body.logprobs is not None,
        )
        return [
            GenerateRequest(self._model.base_id, prompt.ids, adapter=self._model.handle, params=params)
            for prompt in self._prompts
        ]

    def whole(self, generations: list[Generation]) -> dict[str, Any]:
        """The answer as one object."""
        choices = []
        for number, (prompt, generation) in enumerate(zip(self._prompts, generations, strict=True)):
            for index, choice in enumerate(generation.choices):
                choices.append(self._choice(number * self._body.n + index, prompt, choice, generation.prompt))
        return {**self._head, "choices": choices, "usage": self._usage(generations)}

    async def stream(self, stream: TokenStream) -> AsyncIterator[str]:
        """The answer as server-sent events, ending with [DONE]."""
        generations: dict[int, Generation] = {}
        open_choices = {(number, index) for number in range(len(self._prompts)) for index in range(self._body.n)}
        if self._body.echo:
            for number, index in sorted(open_choices):
                yield self._chunk(number, index, self._prompts[number].text)
        async for number, found in stream.events():
            if isinstance(found, Generation):
                generations[number] = found
                for index, choice in enumerate(found.choices):
                    if (number, index) in open_choices:  # nothing was generated
                        yield self._chunk(number, index, "", finish_reason=choice.finish_reason)
                continue
            if found.finish_reason is not None:
                open_choices.discard((number, found.index))
            if found.text or found.finish_reason is not None or self._body.logprobs is not None:
                yield self._chunk(
                    number, found.index, found.text, finish_reason=found.finish_reason, logprobs=self._delta(found)
                )
        if self._body.include_usage:
            usage = self._usage([generations[number] for number in range(len(self._prompts))])
            yield event({**self._head, "choices": [], "usage": usage})
        yield DONE

    def _chunk(
        self,
        number: int,
        index: int,
        text: str,
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        choice = {
            "index": number * self._body.n + index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        usage = {"usage": None} if self._body.include_usage else {}
        return event({**self._head, "choices": [choice], **usage})

    def _choice(self, index: int, prompt: Prompt, choice: Completion, scores: PromptScores | None) -> dict[str, Any]:
        echoed = prompt.text if self._body.echo else ""
        return {
            "index": index,
            "text": echoed + choice.text,
            "logprobs": None if self._body.logprobs is None else self._logprobs(prompt, choice, scores, echoed),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, prompt: Prompt, choice: Completion, scores: PromptScores | None, echoed: str) -> dict[str, Any]:
        own = self._arrays(
            list(choice.token_ids),
            list(choice.token_logprobs),
            list(choice.top_logprobs),
            [len(echoed) + offset for offset in choice.text_offsets],
        )
        if scores is None:
            return own
        ids = list(prompt.ids[prompt.skip :])
        logprobs = [None, *scores.token_logprobs[prompt.skip + 1 :]]
        tops = [None, *scores.top_logprobs[prompt.skip + 1 :]]
        before = self._arrays(ids, logprobs, tops, self._words.offsets(ids))
        return {name: before[name] + own[name] for name in before}

    def _delta(self, delta: Delta) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        return self._arrays([delta.token_id], [delta.logprob], [delta.top], [delta.offset])

    def _arrays(self, ids: list[int], logprobs: list[Any], tops: list[Any], offsets: list[int]) -> dict[str, Any]:
        return {
            "tokens": [self._words.text(token) for token in ids],
            "token_logprobs": logprobs,
            "top_logprobs": [
                None if top is None or logprob is None else self._top(token, logprob, top)
                for token, logprob, top in zip(ids, logprobs, tops, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, token: int, logprob: float, top: tuple[tuple[int, float], ...]) -> dict[str, float]:
        """The alternatives, best first, and the token itself, whose float is the very same in both places."""
        found: dict[str, float] = {}
        for other, value in (*top, (token, logprob)):
            found.setdefault(self._words.text(other), value)
        return found

    def _usage(self, generations: list[Generation]) -> dict[str, int]:
        read = sum(len(prompt.ids) for prompt in self._prompts)
        written = sum(len(choice.token_ids) for generation in generations for choice in generation.choices)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
