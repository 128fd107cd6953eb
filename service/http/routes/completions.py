"""`POST /v1/completions`: continue texts or token ids, as OpenAI's endpoint does."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from registry.errors import InvalidParameter, InvalidPrompt, TooLarge
from service.access.keys import Principal
from service.engine import GenerateRequest, SamplingParams
from service.http.answers.completions import CompletionAnswers, CompletionEvents, Prompt
from service.http.answers.streaming import JSON_OR_STREAM, respond
from service.http.answers.token_text import TokenText
from service.http.app_services import AppServices
from service.http.models.auto_model import model_for
from service.http.models.inference_limits import check_best_of, check_ids, check_sampling, check_text, schema_of
from service.http.models.metering import admit
from service.http.models.named_models import ResolvedModel
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import PROMPTS, takes
from service.http.schemas.completions import CompletionAnswer, CompletionRequest
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.services import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/completions", response_model=CompletionAnswer, responses=JSON_OR_STREAM)
@takes(PROMPTS)
async def completions(
    request: Request, body: CompletionRequest, services: AppServices, principal: ModelUser
) -> Response:
    """Continue one prompt or several, `n` times each. The choices of prompt i are numbered from i * n.

    With `best_of` the server generates more choices, and returns the `n` best of each prompt.
    """
    answers, requests = await in_thread(_prepare, request, services, principal, body)
    events = CompletionEvents(answers) if body.stream else None
    return await respond(request, services.engine, answers, requests, events)


def _prepare(
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
    engine_requests = _engine_requests(body, model, prompts, principal)
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


def _engine_requests(
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
