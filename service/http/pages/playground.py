"""The playground: one prompt, put to up to four models side by side, and what each thinks of every token it writes.

With scripts the answers come as they are written, each from a request of its own (`/playground/events`); without, the
page comes with the whole answers. Both ask the same routes as clients of the API do, within the same limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, ValidationError

from registry.base_model.chat_template import template_of
from registry.errors import Cancelled, InvalidParameter, InvalidPrompt, SoupError, TooLarge
from registry.files import loads_strict
from service.access.keys import Principal
from service.base_models import ServedBaseModel
from service.engine.text_support import why_no_text
from service.http import problems
from service.http.app_parts import AppServices
from service.http.models.named_models import resolve_model
from service.http.pages import addresses
from service.http.pages.forms import ENCODED, FEW, Form, numbered, takes_form
from service.http.pages.models import MOST_MODELS, NamedModels, suggested
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.pages.slider_recipe import MOST_PARTS, Part, Written, parts_of_form, parts_of_query, recipe_of
from service.http.pages.templates import query
from service.http.requests.body_limits import BodyLimit
from service.http.routes.chat import chat_completions
from service.http.routes.completions import completions
from service.http.routes.soups import cook_soup
from service.http.schemas.chat import ChatRequest
from service.http.schemas.completions import CompletionRequest
from service.http.schemas.jobs import Job
from service.http.schemas.wire import Wire
from service.http.security.auth import ModelUser, Writer
from service.http.thread_turns import in_thread
from service.parts import Services
from service.settings import Settings

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
ALTERNATIVES = 4
"""Of each token, beside the one that was drawn."""
TABLED = 300
"""Tokens of an answer that are coloured, and in its table; a longer one is shown as its text alone without scripts."""
TURNS = 200
"""Of a conversation that goes on, questions and answers."""
Kind = Literal["chat", "text"]
PROMPT = BodyLimit(lambda settings: 2 * ENCODED * settings.max_text_chars + 64 * 1024)
"""A form with a prompt, and with what was said before it."""


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
    kind: Kind
    """How the first of them is asked."""
    drawing: Drawing = Drawing()
    mix: list[Part]
    """Adapters and weights of the sliders, as the address has them."""


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
    """The first of them, at most TABLED."""
    count: int = 0
    finish_reason: str | None = None
    problem: str | None = None

    @property
    def told_apart(self) -> bool:
        """Whether its text is that of its tokens, one after the other, and none is left out."""
        return "".join(token.part for token in self.tokens) == self.text


@pages.get(addresses.PLAYGROUND + addresses.TWIN)
def playground(
    services: AppServices, principal: ModelUser, model: NamedModels = None, mix: Written = None
) -> Playground:
    """What the page shows."""
    names = suggested(services, principal)
    models = [one for one in model or () if one.strip()] or names[:1]
    chat = sorted(base.entry.id for base in services.bases.values() if _converses(base))
    kind = _kind(services, principal, models, chat)
    return Playground(models=models, suggested=names, chat=chat, kind=kind, mix=parts_of_query(mix))


def _converses(base: ServedBaseModel) -> bool:
    """Whether a base model has a chat template; one that cannot be read has none."""
    try:
        return why_no_text(base.shape, None) is None and template_of(base.text.tokenizer) is not None
    except SoupError:
        return False


def _kind(services: Services, principal: Principal, models: Sequence[str], chat: Sequence[str]) -> Kind:
    """How the first model is asked, where nobody has said it."""
    try:
        first = resolve_model(services, principal, models[0]) if models else None
    except SoupError:
        first = None
    return "chat" if first is not None and first.base_id in chat else "text"


@pages.get(addresses.PLAYGROUND)
def playground_page(
    request: Request, services: AppServices, principal: ModelUser, model: NamedModels = None, mix: Written = None
) -> Response:
    """The page."""
    return _page(request, services, principal, model, given={}, answers=[], mix=mix)


@pages.post(addresses.PLAYGROUND_MIX)
@takes_form(FEW)
async def mix(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Cook the recipe of the sliders, and go on to ask it beside its first ingredients.

    Where it takes longer than a request waits, to its job.
    """
    mixed = parts_of_form(form)
    made = await cook_soup(request, Response(), recipe_of(mixed, principal.home), services, principal)
    if isinstance(made, Job):
        return gone_to(f"/jobs/{made.id}")
    beside = [one.ref for one in sorted(mixed, key=lambda one: -one.weight) if one.ref != made.model]
    models = [made.model, *dict.fromkeys(beside)][:MOST_MODELS]
    return gone_to(query(addresses.PLAYGROUND, model=models, mix=list(map(str, mixed))))


@pages.post(addresses.PLAYGROUND)
@takes_form(PROMPT)
async def ask(request: Request, form: Form, services: AppServices, principal: ModelUser) -> Response:
    """The page with the whole answers, one model after the other; where none answered, with the status of the first."""
    try:
        bodies = await in_thread(_requests, form, services.settings, stream=False)
    except SoupError as error:
        named = numbered(form, "model", MOST_MODELS)
        return await in_thread(_page, request, services, principal, named, given=form, answers=[], error=error)
    found = [await _answer(request, body, services, principal) for body in bodies]
    errors = [error for _, error in found if error is not None]
    return await in_thread(
        _page,
        request,
        services,
        principal,
        [body.model for body in bodies],
        given=form,
        answers=[one for one, _ in found],
        error=errors[0] if len(errors) == len(found) else None,
    )


@pages.post(addresses.PLAYGROUND_EVENTS)
@takes_form(PROMPT)
async def ask_one(request: Request, form: Form, services: AppServices, principal: ModelUser) -> Response:
    """The answer of the first model as it is written: the events of the API's own stream."""
    body, *_ = await in_thread(_requests, form, services.settings, stream=True)
    return await _asked(request, body, services, principal)


def _page(
    request: Request,
    services: Services,
    principal: Principal,
    models: list[str] | None,
    *,
    given: Mapping[str, str],
    answers: Sequence[Answer],
    error: SoupError | None = None,
    mix: list[str] | None = None,
) -> Response:
    return shown(
        request,
        "playground.html",
        error=error,
        found=playground(services, principal, models, mix),
        given=given,
        answers=answers,
        most=MOST_MODELS,
        tabled=TABLED,
        most_parts=MOST_PARTS,
    )


# --- what a form asks -------------------------------------------------------------------------------


async def _answer(
    request: Request, body: ChatRequest | CompletionRequest, services: Services, principal: Principal
) -> tuple[Answer, SoupError | None]:
    """What one model answers; what it is refused for stands in the place of its answer."""
    try:
        found = await _asked(request, body, services, principal)
    except Cancelled:  # nobody is there any more
        raise
    except SoupError as error:
        return Answer(model=body.model, problem=problems.body_of(error).error.message), error
    return await in_thread(_told, body.model, bytes(found.body)), None


def _told(model: str, data: bytes) -> Answer:
    """The API's answer, word by word; a long one as its text alone. Where the server chose the model, it says which."""
    found = json.loads(data)
    choice = found["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    tokens = _tokens(choice["logprobs"], text)
    return Answer(
        model=model if found["model"] == model else f"{model}: {found['model']}",
        text=text,
        tokens=tokens[:TABLED],
        count=len(tokens),
        finish_reason=choice["finish_reason"],
    )


async def _asked(
    request: Request, body: ChatRequest | CompletionRequest, services: Services, principal: Principal
) -> Response:
    """The API's own answer."""
    if isinstance(body, ChatRequest):
        return await chat_completions(request, body, services, principal)
    return await completions(request, body, services, principal)


def _requests(form: Mapping[str, str], settings: Settings, *, stream: bool) -> list[ChatRequest | CompletionRequest]:
    """The request that a form makes of each of its models; raises InvalidParameter, InvalidPrompt, TooLarge."""
    models = numbered(form, "model", MOST_MODELS)
    if not models:
        raise InvalidParameter("Name a model to ask.", param="model-1")
    prompt = form.get("prompt", "")
    if not prompt.strip():
        raise InvalidPrompt("Write something to ask.", param="prompt")
    drawing, alternatives = _drawing(form).model_dump(), min(ALTERNATIVES, settings.max_logprobs)
    asked: dict[str, Any] = {"stream": stream, **drawing}
    kind: type[ChatRequest] | type[CompletionRequest] = CompletionRequest
    if form.get("kind") == "chat":
        kind = ChatRequest
        system = [{"role": "system", "content": form["system"]}] if form.get("system", "").strip() else []
        before = _before(form.get("before", ""), settings)
        asked |= {"messages": [*system, *before, {"role": "user", "content": prompt}]}
        asked |= {"logprobs": True, "top_logprobs": alternatives}
    else:
        asked |= {"prompt": prompt, "logprobs": alternatives}
    try:
        return [kind.model_validate({**asked, "model": model}) for model in models]
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


def _before(text: str, settings: Settings) -> list[dict[str, str]]:
    """What was said before, as the script keeps it; raises InvalidParameter, TooLarge."""
    if not text:
        return []
    if len(text) > settings.max_text_chars:
        raise TooLarge(
            f"What was said before has {len(text)} characters; at most {settings.max_text_chars} are taken: begin a "
            "new conversation.",
            param="before",
        )
    found = loads_strict(text, what="What was said before", error=InvalidParameter, max_keys=2)
    if not isinstance(found, list) or len(found) > TURNS or not all(map(_is_turn, found)):
        raise InvalidParameter(
            f"What was said before is a list of at most {TURNS} turns, each with 'role' (user or assistant) and "
            "'content', a text: begin a new conversation.",
            param="before",
        )
    return found


def _is_turn(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"role", "content"}
        and isinstance(value["content"], str)
        and value["role"] in {"user", "assistant"}
    )


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
        spans = words
    else:
        words, values = logprobs["tokens"], logprobs["token_logprobs"]
        tops = logprobs["top_logprobs"] or [{}] * len(words)
        spans = [text[begin:end] for begin, end in pairwise([*logprobs["text_offset"], len(text)])]
    return [
        Token(
            text=word,
            probability=math.exp(value),
            part=part,
            others={other: math.exp(one) for other, one in top.items() if other != word},
        )
        for word, value, top, part in zip(words, values, tops, spans, strict=True)
    ]
