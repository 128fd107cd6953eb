"""The playground: one prompt, put to up to four models side by side, and what each thinks of every token it writes.

With scripts the answers come as they are written, each from a request of its own (`/playground/events`); without, the
page comes with the whole answers. Both ask the same routes as clients of the API do, within the same limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, TypeAdapter, ValidationError

from registry.base_model.chat_template import template_of
from registry.errors import InvalidParameter, InvalidPrompt, SoupError
from service.engine.served import not_speaking
from service.http import problems
from service.http.app_parts import AppParts
from service.http.auth import ModelUser
from service.http.body_limits import BodyLimit
from service.http.pages import addresses
from service.http.pages.forms import ENCODED, Form, numbered, takes_form
from service.http.pages.models import suggested
from service.http.pages.page import PageRoute, shown
from service.http.routes.chat import chat_completions
from service.http.routes.completions import completions
from service.http.schemas.chat import ChatMessage, ChatRequest
from service.http.schemas.completions import CompletionRequest
from service.http.schemas.wire import Wire
from service.http.thread_turns import in_thread
from service.keys import Principal
from service.parts import Parts
from service.settings import Settings

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MOST_MODELS = 4
ALTERNATIVES = 4
"""Of each token, beside the one that was drawn."""
TABLED = 300
"""Tokens of an answer that its table has."""
Kind = Literal["chat", "text"]
Models = Annotated[list[str] | None, Query(max_length=MOST_MODELS)]
PROMPT = BodyLimit(lambda settings: 2 * ENCODED * settings.max_text_chars + 64 * 1024)
"""A form with a prompt, and with what was said before it."""
_MESSAGES = TypeAdapter(Annotated[list[ChatMessage], Field(max_length=200, fail_fast=True)])


class Drawing(Wire):
    """How tokens are drawn: what the form begins with, and what it takes in their place."""

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 128
    seed: int | None = None


class Playground(Wire):
    """What the page begins with."""

    object: Literal["playground"] = "playground"
    models: list[str]
    """Those that are asked, as the address names them."""
    suggested: list[str]
    chat: list[str]
    """Base models with a chat template."""
    drawing: Drawing = Drawing()


class Token(Wire):
    """A token of an answer, its probability, and those of others that could have been."""

    text: str
    probability: float
    others: dict[str, float]
    part: str
    """What it adds to the text: less than `text` says where it is a part of a character."""

    @property
    def tenth(self) -> int:
        """In which tenth its probability is, by which it is coloured."""
        return min(int(self.probability * 10), 9)


class Answer(Wire):
    """What one model wrote, or why it did not."""

    model: str
    text: str = ""
    tokens: list[Token] = Field(default_factory=list)
    finish_reason: str | None = None
    problem: str | None = None

    @property
    def told_apart(self) -> bool:
        """Whether its text is that of its tokens, one after the other."""
        return "".join(token.part for token in self.tokens) == self.text


@pages.get(addresses.PLAYGROUND + addresses.TWIN)
def playground(parts: AppParts, who: ModelUser, model: Models = None) -> Playground:
    """What the page shows."""
    names = suggested(parts, who)
    speak = [base for base in parts.bases.values() if not_speaking(base.shape, None) is None]
    chat = sorted(base.entry.id for base in speak if template_of(base.text.tokenizer) is not None)
    return Playground(models=model or names[:1], suggested=names, chat=chat)


@pages.get(addresses.PLAYGROUND)
def playground_page(request: Request, parts: AppParts, who: ModelUser, model: Models = None) -> Response:
    """The page."""
    return _page(request, playground(parts, who, model), given={}, answers=[])


@pages.post(addresses.PLAYGROUND)
@takes_form(PROMPT)
async def ask(request: Request, form: Form, parts: AppParts, who: ModelUser) -> Response:
    """The page with the whole answers, one model after the other."""
    models = _models(form)
    answers = [await _answer(request, form, parts, who, one) for one in models]
    found = await in_thread(playground, parts, who, models)
    return _page(request, found, given=form, answers=answers)


@pages.post(addresses.PLAYGROUND_EVENTS)
@takes_form(PROMPT)
async def ask_one(request: Request, form: Form, parts: AppParts, who: ModelUser) -> Response:
    """The answer of the first model as it is written: the events of the API's own stream."""
    return await _asked(request, form, parts, who, _models(form)[0], stream=True)


def _page(request: Request, found: Playground, *, given: Mapping[str, str], answers: Sequence[Answer]) -> Response:
    return shown(request, "playground.html", found=found, given=given, answers=answers, most=MOST_MODELS, tabled=TABLED)


# --- what a form asks -------------------------------------------------------------------------------


def _models(form: Mapping[str, str]) -> list[str]:
    """The models that a form names, each once; raises InvalidParameter for none."""
    found = numbered(form, "model", MOST_MODELS)
    if not found:
        raise InvalidParameter("Name a model to ask.", param="model-1")
    return found


async def _answer(request: Request, form: Mapping[str, str], parts: Parts, who: Principal, model: str) -> Answer:
    """What one model answers; what it is refused for stands in the place of its answer."""
    try:
        found = await _asked(request, form, parts, who, model, stream=False)
    except SoupError as error:
        return Answer(model=model, problem=error.message)
    choice = json.loads(bytes(found.body))["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return Answer(
        model=model, text=text, tokens=_tokens(choice["logprobs"], text), finish_reason=choice["finish_reason"]
    )


async def _asked(
    request: Request, form: Mapping[str, str], parts: Parts, who: Principal, model: str, *, stream: bool
) -> Response:
    """The API's answer to what a form asks of a model."""
    body = _request(form, parts.settings, model, stream=stream)
    if isinstance(body, ChatRequest):
        return await chat_completions(request, body, parts, who)
    return await completions(request, body, parts, who)


def _request(
    form: Mapping[str, str], settings: Settings, model: str, *, stream: bool
) -> ChatRequest | CompletionRequest:
    """The request that a form makes of a model; raises InvalidParameter, InvalidPrompt."""
    prompt = form.get("prompt", "")
    if not prompt.strip():
        raise InvalidPrompt("Write something to ask.", param="prompt")
    asked: dict[str, Any] = {"model": model, "stream": stream, **_drawing(form).model_dump()}
    alternatives = min(ALTERNATIVES, settings.max_logprobs)
    try:
        if form.get("kind") == "chat":
            system = [{"role": "system", "content": form["system"]}] if form.get("system", "").strip() else []
            before = [one.model_dump() for one in _MESSAGES.validate_json(form.get("before") or "[]")]
            messages = [*system, *before, {"role": "user", "content": prompt}]
            return ChatRequest.model_validate({
                **asked, "messages": messages, "logprobs": True, "top_logprobs": alternatives
            })  # fmt: skip
        return CompletionRequest.model_validate({**asked, "prompt": prompt, "logprobs": alternatives})
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


def _drawing(form: Mapping[str, str]) -> Drawing:
    """How a form wants tokens to be drawn; what it leaves empty is as the page begins."""
    given = {name: form[name].strip() for name in Drawing.model_fields if form.get(name, "").strip()}
    try:
        return Drawing.model_validate(given, strict=False)
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


def _tokens(logprobs: Mapping[str, Any] | None, text: str) -> list[Token]:
    """The tokens of an answer, of a conversation or a text."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        found = logprobs["content"]
        words, values = [one["token"] for one in found], [one["logprob"] for one in found]
        tops = [{other["token"]: other["logprob"] for other in one["top_logprobs"]} for one in found]
        parts = words
    else:
        words, values = logprobs["tokens"], logprobs["token_logprobs"]
        tops = logprobs["top_logprobs"] or [{}] * len(words)
        parts = [text[begin:end] for begin, end in pairwise([*logprobs["text_offset"], len(text)])]
    return [
        Token(
            text=word, probability=math.exp(value), part=part,
            others={other: math.exp(one) for other, one in top.items() if other != word},
        )
        for word, value, top, part in zip(words, values, tops, parts, strict=True)
    ]  # fmt: skip
