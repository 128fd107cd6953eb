"""`POST /v1/perplexity`: perplexity of a model on texts with standard errors, optionally compared with a second model.

A text is tokenised as BOS + text and split into consecutive windows of the context, each with BOS, so that every token
is scored once (docs/explanation/methods.md#perplexity). Of a prompt with its answer, only the answer's tokens are
scored.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.http.answers.perplexity import NamedModel, admit_texts, perplexity_answers
from service.http.answers.streaming import finish, prompt_in
from service.http.app_services import AppServices
from service.http.models.metering import answer_headers
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import TEXTS, takes
from service.http.schemas.perplexity import PerplexityAnswer, PerplexityRequest
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/perplexity")
@takes(TEXTS)
async def perplexity(
    request: Request, response: Response, body: PerplexityRequest, services: AppServices, principal: ModelUser
) -> PerplexityAnswer:
    """Perplexity = exp(sum NLL / sum tokens); `standard_error` is that of `mean_nll` over texts, a lower bound."""
    models: list[NamedModel] = [(body.model, body.adapters)]
    if body.baseline is not None:
        models.append((body.baseline, None))
    inputs, requests = await in_thread(admit_texts, request, services, principal, models, body.texts)
    with prompt_in("texts"):
        scores = await finish(request, services.engine, requests)
    response.headers.update(answer_headers(request, inputs[0].model))
    baseline = None if body.baseline is None else 1
    (answer,) = await in_thread(perplexity_answers, body.texts, inputs, scores, baseline=baseline, seed=body.seed)
    return answer
