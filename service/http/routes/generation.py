"""`POST /v1/completions` and `POST /v1/chat/completions`, as OpenAI has them: continue texts, and answer conversations.

A conversation is rendered by the base model's chat template. A base model without one is refused: a prompt in another
format would give answers that only look right.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from registry.base_model.chat_template import render, template_of
from registry.errors import InvalidParameter, InvalidPrompt, TooLarge
from service.access.keys import Principal
from service.engine import GenerateRequest, SamplingParams
from service.http.answers.generation import ChatAnswers, ChatEvents, CompletionAnswers, CompletionEvents, Prompt
from service.http.answers.streaming import JSON_OR_STREAM, prompt_in, respond
from service.http.answers.token_text import TokenText
from service.http.app_services import AppServices
from service.http.models.auto_model import model_for
from service.http.models.inference_limits import check_best_of, check_ids, check_sampling, check_text, schema_of
from service.http.models.metering import admit
from service.http.models.named_models import ResolvedModel
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import LARGE, PROMPTS, takes
from service.http.schemas.generation import ChatAnswer, ChatRequest, CompletionAnswer, CompletionRequest
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.services import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


# --- completions --------------------------------------------------------------------------------------


@router.post("/v1/completions", response_model=CompletionAnswer, responses=JSON_OR_STREAM)
@takes(PROMPTS)
async def completions(
    request: Request, body: CompletionRequest, services: AppServices, principal: ModelUser
) -> Response:
    """Continue one prompt or several, `n` times each. The choices of prompt i are numbered from i * n.

    With `best_of` the server generates more choices, and returns the `n` best of each prompt.
    """
    answers, requests = await in_thread(_prepare_completions, request, services, principal, body)
    events = CompletionEvents(answers) if body.stream else None
    return await respond(request, services.engine, answers, requests, events)


def _prepare_completions(
    request: Request, services: Services, principal: Principal, body: CompletionRequest
) -> tuple[CompletionAnswers, list[GenerateRequest]]:
    """Check and tokenise a request; return the builder of its answer and its admitted requests to the engine."""
    check_sampling(services.settings, n=body.n, logprobs=body.logprobs, logprobs_name="logprobs")
    check_best_of(body.best_of, services.settings, n=body.n, stream=body.stream)
    if body.stream and body.echo and body.logprobs is not None:
        raise InvalidParameter("'echo' with 'logprobs' cannot be streamed; leave 'stream' out.", param="stream")
    limit = services.settings.max_prompts
    if len(body.prompts) > limit:
        raise TooLarge(f"The request has {len(body.prompts)} prompts; at most {limit} are taken.", param="prompt")
    if not body.prompts or not all(body.prompts):
        raise InvalidPrompt("The prompt is empty: send some text, or at least one token id.", param="prompt")
    for prompt in body.prompts:
        check_text(prompt, services.settings, param="prompt")
    services.engine.check_admission(principal.key_id)  # what is refused costs nobody else's time
    model = model_for(
        request, services, principal, body, [prompt for prompt in body.prompts if isinstance(prompt, str)]
    )
    prompts = [_prompt(model, prompt, special=body.add_special_tokens) for prompt in body.prompts]
    engine_requests = _completion_requests(body, model, prompts, principal)
    admitted = admit(request, services, principal, [(model, engine_request) for engine_request in engine_requests])
    return CompletionAnswers(body, model, prompts), admitted


def _prompt(model: ResolvedModel, prompt: str | list[int], *, special: bool) -> Prompt:
    base = model.base
    if isinstance(prompt, str):
        plain = base.tokenize(prompt, bos=False)
        ids = base.with_bos(plain) if special else plain
        return Prompt(ids=tuple(ids), text=prompt, skip=len(ids) - len(plain))
    check_ids(prompt, model, param="prompt")
    return Prompt(ids=tuple(prompt), text=TokenText(base).decode(prompt), skip=0)


def _completion_requests(
    body: CompletionRequest, model: ResolvedModel, prompts: list[Prompt], principal: Principal
) -> list[GenerateRequest]:
    """Return one request to the engine per prompt; ranked choices need their log-probabilities in any case."""
    schema = schema_of(body.response_format)
    scored = body.echo and body.logprobs is not None
    logprobs = 0 if body.ranked and body.logprobs is None else body.logprobs
    sampling = body.sampling_params | {"n": body.generated}
    params = SamplingParams(max_tokens=body.max_tokens, logprobs=logprobs, prompt_logprobs=scored, **sampling)
    return [
        GenerateRequest(
            model.base_id,
            prompt.ids,
            adapter=model.stored,
            params=params,
            namespace=principal.sharing,
            owner=principal.key_id,
            schema=schema,
        )
        for prompt in prompts
    ]


# --- chats --------------------------------------------------------------------------------------------


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=JSON_OR_STREAM)
@takes(LARGE)
async def chat_completions(
    request: Request, body: ChatRequest, services: AppServices, principal: ModelUser
) -> Response:
    """Answer a conversation `n` times. Without a limit an answer may fill the context."""
    answers, requests = await in_thread(_prepare_chat, request, services, principal, body)
    events = ChatEvents(answers) if body.stream else None
    with prompt_in("messages"):
        return await respond(request, services.engine, answers, requests, events)


def _prepare_chat(
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
    admitted = admit(request, services, principal, [(model, _chat_request(body, model, ids, principal, ends))])
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


def _chat_request(
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
