"""`POST /v1/chat/completions`: apply the base model's chat template to messages and generate as completions do.

A base model without a template is refused: a prompt in another format would give answers that only look right.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from registry.base_model.chat_template import render, template_of
from registry.errors import InvalidParameter, InvalidPrompt
from service.access.keys import Principal
from service.engine import GenerateRequest, SamplingParams
from service.http.answers.chat import ChatAnswers, ChatEvents
from service.http.answers.streaming import JSON_OR_STREAM, prompt_in, respond
from service.http.app_services import AppServices
from service.http.models.auto_model import model_for
from service.http.models.inference_limits import check_sampling, check_text, schema_of
from service.http.models.metering import admit
from service.http.models.named_models import ResolvedModel
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import CONVERSATION, takes
from service.http.schemas.chat import ChatAnswer, ChatRequest
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.services import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=JSON_OR_STREAM)
@takes(CONVERSATION)
async def chat_completions(
    request: Request, body: ChatRequest, services: AppServices, principal: ModelUser
) -> Response:
    """Answer a conversation `n` times. Without a limit an answer may fill the context."""
    answers, requests = await in_thread(_prepare, request, services, principal, body)
    events = ChatEvents(answers) if body.stream else None
    with prompt_in("messages"):
        return await respond(request, services.engine, answers, requests, events)


def _prepare(
    request: Request, services: Services, principal: Principal, body: ChatRequest
) -> tuple[ChatAnswers, list[GenerateRequest]]:
    check_sampling(services.settings, n=body.n, logprobs=body.top_logprobs, logprobs_name="top_logprobs")
    conversation_text = "".join(f"{message.name or ''}{message.text}" for message in body.messages)
    check_text(conversation_text, services.settings, param="messages")
    services.engine.check_admission(principal.key_id)  # what is refused costs nobody else's time
    texts = [message.text for message in body.messages if message.role == "user"]
    model = model_for(request, services, principal, body, texts)
    ids = tuple(model.base.tokenize(conversation(model, body), bos=None if body.add_special_tokens else False))
    ends = () if model.base.turn_id is None else (model.base.turn_id,)
    admitted = admit(request, services, principal, [(model, _engine_request(body, model, ids, principal, ends))])
    return ChatAnswers(body, model, len(ids)), admitted


def conversation(model: ResolvedModel, body: ChatRequest) -> str:
    """Return the messages as text by the base model's chat template, which adds a BOS itself if it needs one.

    Raises InvalidParameter if there is no template, InvalidPrompt if it refuses the messages.
    """
    tokenizer = model.base.tokenizer
    if template_of(tokenizer) is None:
        raise InvalidParameter(
            f"Base model '{model.base_id}' has no chat template; send a prompt to /v1/completions.", param="model"
        )
    messages = [
        {"role": message.role, "content": message.text} | ({} if message.name is None else {"name": message.name})
        for message in body.messages
    ]
    try:
        return render(tokenizer, messages)
    except Exception as error:  # templates raise any class, for unknown roles or a wrong order
        raise InvalidPrompt(
            "The model's chat template does not take these messages; check their roles and order.", param="messages"
        ) from error


def _engine_request(
    body: ChatRequest, model: ResolvedModel, ids: tuple[int, ...], principal: Principal, ends: tuple[int, ...]
) -> GenerateRequest:
    """Return the request to the engine; tokens `ends`, with which the template ends a turn, end an answer too."""
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = SamplingParams(max_tokens=body.limit, logprobs=logprobs, end_ids=ends, **body.sampling_params)
    return GenerateRequest(
        model.base_id,
        ids,
        adapter=model.stored,
        params=params,
        namespace=principal.sharing,
        owner=principal.key_id,
        schema=schema_of(body.response_format),
    )
