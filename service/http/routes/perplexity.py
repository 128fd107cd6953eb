"""`POST /v1/perplexity`: perplexity of a model on texts with standard errors, optionally compared with a second model.

A text is tokenised as BOS + text and split into consecutive windows of the context, each with BOS, so that every token
is scored once (docs/explanation/methods.md#perplexity). Of a prompt with its answer only the answer's tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request, Response

from registry.base_model.likelihood import Window, text_scores
from registry.errors import InvalidParameter
from registry.evaluate import perplexity as evaluate
from registry.spec import Passage, PerplexityReport, WeightedRef
from service.access.keys import Principal
from service.engine import ScoreRequest, Scores
from service.engine.text_calls import score_request, text_windows
from service.http.answers.streaming import finish
from service.http.app_services import AppServices
from service.http.models.inference_limits import check_texts
from service.http.models.metering import admit, answer_headers
from service.http.models.named_models import ResolvedModel, language_model
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import TEXTS, takes
from service.http.schemas.perplexity import ComparedModel, PerplexityAnswer, PerplexityRequest
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.services import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)
NamedModel = tuple[str, Sequence[WeightedRef] | None]
"""The name of a model, and the adapters that a base model is given."""


@router.post("/v1/perplexity")
@takes(TEXTS)
async def perplexity(
    request: Request, response: Response, body: PerplexityRequest, services: AppServices, principal: ModelUser
) -> PerplexityAnswer:
    """Perplexity = exp(sum NLL / sum tokens); `standard_error` is that of `mean_nll` over texts, a lower bound."""
    named: list[NamedModel] = [(body.model, body.adapters)]
    if body.baseline is not None:
        named.append((body.baseline, None))
    inputs, requests = await in_thread(_prepare, request, services, principal, named, body.texts)
    scores = await finish(request, services.engine, requests)
    response.headers.update(answer_headers(request, inputs[0].model))
    baseline = None if body.baseline is None else 1
    (answer,) = await in_thread(_answers, body.texts, inputs, scores, baseline=baseline, seed=body.seed)
    return answer


async def compare_with_first(
    request: Request, services: Services, principal: Principal, names: Sequence[str], texts: Sequence[Passage]
) -> list[PerplexityAnswer]:
    """Return the perplexity of each model but the first, compared with the first; each model is scored once."""
    inputs, requests = await in_thread(_prepare, request, services, principal, [(name, None) for name in names], texts)
    scores = await finish(request, services.engine, requests)
    return await in_thread(_answers, texts, inputs, scores, baseline=0, seed=0)


@dataclass(frozen=True)
class ModelInput:
    """The texts for one model: the windows of token ids of each text."""

    model: ResolvedModel
    windows: list[list[Window]]

    def request(self, principal: Principal) -> ScoreRequest:
        """Return one request to the engine for the windows of all texts, in order."""
        flat = [window for text in self.windows for window in text]
        return replace(score_request(self.model.base, flat, self.model.handle), owner=principal.key_id)


def _prepare(
    request: Request, services: Services, principal: Principal, named: Sequence[NamedModel], texts: Sequence[Passage]
) -> tuple[list[ModelInput], list[ScoreRequest]]:
    check_texts(texts, services.settings, param="texts")
    services.engine.check_admission(principal.key_id, local=True)  # what is refused costs nobody else's time
    models = [language_model(services, principal, name, adapters) for name, adapters in named]
    if len({model.base_id for model in models}) > 1:
        bases = ", ".join(dict.fromkeys(model.base_id for model in models))
        raise InvalidParameter(
            f"These models are of several base models ({bases}), which count other tokens: compare those of one alone.",
            param="baseline",
        )
    inputs = [ModelInput(model, [text_windows(model.base, text, model.config) for text in texts]) for model in models]
    return inputs, admit(request, services, principal, [(item.model, item.request(principal)) for item in inputs])


def _answers(
    texts: Sequence[Passage], inputs: Sequence[ModelInput], scores: Sequence[Scores], *, baseline: int | None, seed: int
) -> list[PerplexityAnswer]:
    """Return the answer for each model but the baseline; `baseline` is an index into `inputs`."""
    passages = [text_scores(texts, item.windows, score.nll) for item, score in zip(inputs, scores, strict=True)]
    base_model, base_passages = (None, None) if baseline is None else (inputs[baseline].model, passages[baseline])
    return [
        _answer(item.model, evaluate.report(passages[number], base_passages, seed=seed), base_model)
        for number, item in enumerate(inputs)
        if number != baseline
    ]


def _answer(model: ResolvedModel, report: PerplexityReport, baseline: ResolvedModel | None) -> PerplexityAnswer:
    compared = None
    if report.baseline is not None and baseline is not None:
        compared = ComparedModel(model=baseline.name, digest=baseline.digest, **report.baseline.model_dump())
    return PerplexityAnswer(
        **report.model_dump(exclude={"baseline"}), model=model.name, digest=model.digest, baseline=compared
    )
