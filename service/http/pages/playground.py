"""The playground: one prompt for up to four models side by side, with the probability of every token.

With scripts the answers are streamed, each by a request of its own (`/playground/events`); without, the page comes
with the complete answers. Both call the API's own routes, within the same limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, ValidationError

from registry.base_model.chat_template import template_of
from registry.errors import Cancelled, InvalidParameter, InvalidPrompt, SoupError, TooLarge
from registry.files import loads_strict
from service.access.keys import Principal
from service.base_models import ServedBaseModel
from service.engine.text_support import why_no_text
from service.http import problems
from service.http.app_services import AppServices
from service.http.models.mixture_names import is_mixture, mixture_name, parse_mixture
from service.http.models.named_models import language_model, resolve_model
from service.http.pages.forms import BYTES_PER_CHARACTER, SMALL, Form, takes_form
from service.http.pages.models import MAX_MODELS, ModelNames, models_of_form, suggested_models
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.pages.templates import url
from service.http.requests.body_limits import BodyLimit
from service.http.routes.generation import chat_completions, completions
from service.http.schemas.generation import ChatRequest, CompletionRequest
from service.http.schemas.wire import MixedAdapter, Wire
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.services import Services
from service.settings import Settings

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
ALTERNATIVES = 4
"""Alternatives to each token whose probabilities are requested."""
MAX_TABLE_TOKENS = 300
"""Tokens of an answer that are coloured and in its table; without scripts a longer answer is shown as plain text."""
MAX_MESSAGES = 200
"""Earlier messages of a conversation."""
SLIDERS = 5
"""Adapters of a mixture that have a slider."""
MixQuery = Annotated[list[str] | None, Query(max_length=SLIDERS, description="Adapters and weights.")]
"""The sliders' adapters with their weights, each as `acme/law@1*0.7`."""
Kind = Literal["chat", "text"]
PROMPT = BodyLimit(lambda settings: 2 * BYTES_PER_CHARACTER * settings.max_text_chars + 64 * 1024)
"""Limit of a form with a prompt and the earlier messages of its conversation."""
GenerationRequest = ChatRequest | CompletionRequest


class SamplingForm(Wire):
    """The sampling parameters and the values that the form starts with."""

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 128
    seed: int | None = None


class Playground(Wire):
    """The content of the page."""

    object: Literal["playground"] = "playground"
    models: list[str]
    """The names of the models in the form."""
    suggested: list[str]
    chat: list[str]
    """Base models with a chat template."""
    kind: Kind
    """The kind of request that fits the first model."""
    sampling: SamplingForm = Field(default=SamplingForm(), alias="drawing")
    mix: list[MixedAdapter]
    """Adapters and weights of the sliders."""


class Token(Wire):
    """A token of an answer, its probability, and the probabilities of its alternatives."""

    text: str
    probability: float
    alternatives: dict[str, float]
    visible_text: str
    """The text that it adds to the answer: less than `text` if it is a part of a character."""

    @property
    def tenth(self) -> int:
        """The tenth of its probability, 0 to 9, which has a colour."""
        return min(int(self.probability * 10), 9)


class Answer(Wire):
    """The answer of one model, or the error."""

    model: str
    text: str = ""
    tokens: list[Token] = Field(default_factory=list)
    """The first tokens, at most MAX_TABLE_TOKENS."""
    count: int = 0
    finish_reason: str | None = None
    problem: str | None = None

    @property
    def has_all_tokens(self) -> bool:
        """Return True if the tokens together are the text."""
        return "".join(token.visible_text for token in self.tokens) == self.text


@pages.get("/playground.json")
def playground(
    services: AppServices, principal: ModelUser, model: ModelNames = None, mix: MixQuery = None
) -> Playground:
    """The content of the page."""
    suggested = suggested_models(services, principal)
    models = [name for name in model or () if name.strip()] or suggested[:1]
    chat = sorted(base.entry.id for base in services.bases.values() if _has_chat_template(base))
    kind = _default_kind(services, principal, models, chat)
    return Playground(models=models, suggested=suggested, chat=chat, kind=kind, mix=_parse_ingredients(mix or ()))


def _has_chat_template(base: ServedBaseModel) -> bool:
    """Return True if a base model answers with text and has a chat template that can be read."""
    try:
        return why_no_text(base.shape, None) is None and template_of(base.text.tokenizer) is not None
    except SoupError:
        return False


def _default_kind(services: Services, principal: Principal, models: Sequence[str], chat: Sequence[str]) -> Kind:
    """The kind of request that fits the first model."""
    try:
        first = resolve_model(services, principal, models[0]) if models else None
    except SoupError:
        first = None
    return "chat" if first is not None and first.base_id in chat else "text"


@pages.get("/playground")
def playground_page(
    request: Request, services: AppServices, principal: ModelUser, model: ModelNames = None, mix: MixQuery = None
) -> Response:
    """The page."""
    return _page(request, playground(services, principal, model, mix), form={}, answers=[])


@pages.post("/playground/mix")
@takes_form(SMALL)
async def mix(form: Form, services: AppServices, principal: ModelUser) -> Response:
    """Redirect to a playground with the mixture of the sliders and its heaviest ingredients, if it can be mixed."""
    ingredients = _ingredients_of_form(form)
    mixture = _model_of(ingredients)
    await in_thread(language_model, services, principal, mixture)  # raises for what cannot be mixed
    by_weight = sorted(ingredients, key=lambda item: -item.weight)
    models = list(dict.fromkeys([mixture, *(item.ref for item in by_weight)]))[:MAX_MODELS]
    return redirect_to(url("/playground", model=models, mix=[mixture_name([item]) for item in ingredients]))


@pages.post("/playground")
@takes_form(PROMPT)
async def ask(request: Request, form: Form, services: AppServices, principal: ModelUser) -> Response:
    """The page with the complete answers, generated one after the other; an error if no model answered."""
    try:
        bodies = await in_thread(_parse_requests, form, services.settings, stream=False)
    except SoupError as error:
        names = models_of_form(form)
        content = await in_thread(playground, services, principal, names)
        return await in_thread(_page, request, content, form=form, answers=[], error=error)
    answers, errors = [], []
    for body in bodies:
        try:
            answers.append(await _answer(request, body, services, principal))
        except Cancelled:  # the browser has disconnected
            raise
        except SoupError as error:
            answers.append(Answer(model=body.model, problem=problems.body_of(error).error.message))
            errors.append(error)
    content = await in_thread(playground, services, principal, [body.model for body in bodies])
    first_error = errors[0] if len(errors) == len(answers) else None
    return await in_thread(_page, request, content, form=form, answers=answers, error=first_error)


@pages.post("/playground/events")
@takes_form(PROMPT)
async def ask_one(request: Request, form: Form, services: AppServices, principal: ModelUser) -> Response:
    """The answer of the first model as the server-sent events of the API."""
    body, *_ = await in_thread(_parse_requests, form, services.settings, stream=True)
    return await _generate(request, body, services, principal)


def _page(
    request: Request,
    content: Playground,
    *,
    form: Mapping[str, str],
    answers: Sequence[Answer],
    error: SoupError | None = None,
) -> Response:
    return render_page(
        request,
        "playground.html",
        error=error,
        playground=content,
        form=form,
        answers=answers,
        max_models=MAX_MODELS,
        max_table_tokens=MAX_TABLE_TOKENS,
        max_ingredients=SLIDERS,
    )


# --- the requests that a form describes -------------------------------------------------------------


def _parse_requests(form: Mapping[str, str], settings: Settings, *, stream: bool) -> list[GenerationRequest]:
    """A request for each model of a form; raises InvalidParameter, InvalidPrompt, TooLarge."""
    models = models_of_form(form)
    if not models:
        raise InvalidParameter("Name a model to ask.", param="model-1")
    prompt = form.get("prompt", "")
    if not prompt.strip():
        raise InvalidPrompt("Write something to ask.", param="prompt")
    fields = {"stream": stream, **_parse_sampling(form).model_dump()}
    alternatives = min(ALTERNATIVES, settings.max_logprobs)
    kind: type[GenerationRequest] = CompletionRequest
    if form.get("kind") == "chat":
        kind = ChatRequest
        system = [{"role": "system", "content": form["system"]}] if form.get("system", "").strip() else []
        earlier = _parse_conversation(form.get("before", ""), settings)
        fields |= {"messages": [*system, *earlier, {"role": "user", "content": prompt}]}
        fields |= {"logprobs": True, "top_logprobs": alternatives}
    else:
        fields |= {"prompt": prompt, "logprobs": alternatives}
    try:
        return [kind.model_validate({**fields, "model": model}) for model in models]
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


def _parse_conversation(text: str, settings: Settings) -> list[dict[str, str]]:
    """The earlier messages, as the page's script sends them; raises InvalidParameter, TooLarge."""
    if not text:
        return []
    if len(text) > settings.max_text_chars:
        raise TooLarge(
            f"The conversation has {len(text)} characters; the maximum is {settings.max_text_chars}: start a new one.",
            param="before",
        )
    messages = loads_strict(text, subject="The conversation", error=InvalidParameter, max_keys=2)
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES or not all(map(_is_message, messages)):
        raise InvalidParameter(
            f"The conversation must be a list of at most {MAX_MESSAGES} turns, each with a 'role' (user or "
            "assistant) and a text as 'content': start a new one.",
            param="before",
        )
    return messages


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"role", "content"}:
        return False
    return isinstance(value["content"], str) and value["role"] in ("user", "assistant")


def _parse_sampling(form: Mapping[str, str]) -> SamplingForm:
    """The sampling parameters of a form, with the defaults for blank fields; raises InvalidParameter."""
    fields = {name: form[name].strip() for name in SamplingForm.model_fields if form.get(name, "").strip()}
    try:
        return SamplingForm.model_validate(fields, strict=False)
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


# --- the mixture of the sliders -----------------------------------------------------------------------


def _ingredients_of_form(form: Mapping[str, str]) -> list[MixedAdapter]:
    """The ingredients in a form, without those whose adapter is blank; raises InvalidParameter."""
    rows = [(form.get(f"mix-{n}", "").strip(), form.get(f"weight-{n}", "").strip()) for n in range(1, SLIDERS + 1)]
    if any(is_mixture(ref) for ref, _ in rows):
        raise InvalidParameter("Name one adapter in each row, without '+' and '*'.", param="mix")
    try:
        return [MixedAdapter(ref=ref, weight=float(weight or "0")) for ref, weight in rows if ref]
    except ValueError:  # of the number, or of the values
        raise InvalidParameter(
            "A row is not valid: it has an adapter and a weight from 0 to 1000.", param="mix"
        ) from None


def _parse_ingredients(texts: Sequence[str]) -> list[MixedAdapter]:
    """The ingredients in texts such as `acme/law@1*0.7`; raises InvalidName, and InvalidParameter for too many."""
    ingredients = [ingredient for text in texts for ingredient in parse_mixture(text, param="mix")]
    if len(ingredients) > SLIDERS:
        raise InvalidParameter(f"The sliders mix at most {SLIDERS} adapters.", param="mix")
    return ingredients


def _model_of(ingredients: Sequence[MixedAdapter]) -> str:
    """The name of the model that the sliders describe; raises InvalidParameter if all weights are zero."""
    weighted = [item for item in ingredients if item.weight > 0]
    if not weighted:
        raise InvalidParameter("Name an adapter and give it a weight above zero.", param="mix-1")
    return weighted[0].ref if len(weighted) == 1 else mixture_name(weighted)


# --- answers ----------------------------------------------------------------------------------------


async def _generate(request: Request, body: GenerationRequest, services: Services, principal: Principal) -> Response:
    """The response of the API's route for this kind of request."""
    if isinstance(body, ChatRequest):
        return await chat_completions(request, body, services, principal)
    return await completions(request, body, services, principal)


async def _answer(request: Request, body: GenerationRequest, services: Services, principal: Principal) -> Answer:
    """The complete answer of one model; raises what the API's route raises."""
    response = await _generate(request, body, services, principal)
    return await in_thread(_parse_answer, body.model, bytes(response.body))


def _parse_answer(model: str, data: bytes) -> Answer:
    """The API's answer by token; its model name has the ref too if the server chose the model."""
    body = json.loads(data)
    choice = body["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    tokens = _tokens(choice["logprobs"], text)
    return Answer(
        model=model if body["model"] == model else f"{model}: {body['model']}",
        text=text,
        tokens=tokens[:MAX_TABLE_TOKENS],
        count=len(tokens),
        finish_reason=choice["finish_reason"],
    )


def _tokens(logprobs: Mapping[str, Any] | None, text: str) -> list[Token]:
    """The tokens of an answer, from the log probabilities of a chat or a text completion."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [
            _token(
                item["token"],
                item["token"],
                item["logprob"],
                {alternative["token"]: alternative["logprob"] for alternative in item["top_logprobs"]},
            )
            for item in logprobs["content"]
        ]
    tops = logprobs["top_logprobs"] or [{}] * len(logprobs["tokens"])
    visible = [text[begin:end] for begin, end in pairwise([*logprobs["text_offset"], len(text)])]
    return [
        _token(token, visible_text, logprob, alternatives)
        for token, visible_text, logprob, alternatives in zip(
            logprobs["tokens"], visible, logprobs["token_logprobs"], tops, strict=True
        )
    ]


def _token(text: str, visible_text: str, logprob: float, alternatives: Mapping[str, float]) -> Token:
    """A token with probabilities instead of log probabilities, without itself among its alternatives."""
    return Token(
        text=text,
        visible_text=visible_text,
        probability=math.exp(logprob),
        alternatives={token: math.exp(value) for token, value in alternatives.items() if token != text},
    )
