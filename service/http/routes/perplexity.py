"""`POST /v1/perplexity`: how well a model predicts texts, with standard errors, beside a second model if asked.

A text is tokenised as BOS + text and cut into consecutive windows of the context, each with BOS, so that every token
is scored once (docs/explanation/methods.md#perplexity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from registry.base_model.likelihood import text_scores
from registry.errors import InvalidParameter
from registry.evaluate import perplexity as evaluate
from registry.spec import PerplexityReport
from service.access.keys import Principal
from service.engine import ScoreRequest, Scores
from service.engine.text_calls import Windows, has_bos, text_windows
from service.http.answers.streaming import finish
from service.http.app_parts import AppServices
from service.http.models.inference_limits import check_texts
from service.http.models.metering import admit, answer_headers
from service.http.models.named_models import ResolvedModel, language_model
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import TEXTS, takes
from service.http.schemas.perplexity import ComparedModel, PerplexityAnswer, PerplexityRequest
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.parts import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/perplexity")
@takes(TEXTS)
async def perplexity(
    request: Request, response: Response, body: PerplexityRequest, services: AppServices, principal: ModelUser
) -> PerplexityAnswer:
    """Perplexity = exp(sum NLL / sum tokens); `standard_error` is that of `mean_nll` over texts, a lower bound."""
    names = [body.model] if body.baseline is None else [body.model, body.baseline]
    asked, requests = await in_thread(_prepare, request, services, principal, names, body.texts)
    scores = await finish(request, services.engine, requests)
    response.headers.update(answer_headers(request, asked[0].model))
    baseline = None if body.baseline is None else 1
    (answer,) = await in_thread(_answers, body.texts, asked, scores, baseline=baseline, seed=body.seed)
    return answer


async def against_the_first(
    request: Request, services: Services, principal: Principal, names: Sequence[str], texts: Sequence[str]
) -> list[PerplexityAnswer]:
    """The perplexity of several models, each but the first against that; every one of them is scored once."""
    asked, requests = await in_thread(_prepare, request, services, principal, names, texts)
    scores = await finish(request, services.engine, requests)
    return await in_thread(_answers, texts, asked, scores, baseline=0, seed=0)


@dataclass(frozen=True)
class Asked:
    """The texts as one model's tokenizer cuts them: the windows of each text."""

    model: ResolvedModel
    windows: list[Windows]

    def request(self, principal: Principal) -> ScoreRequest:
        """All windows of all texts as one request, text after text."""
        flat = tuple(window for own in self.windows for window in own)
        return ScoreRequest(
            self.model.base_id, flat, adapter=self.model.handle, bos=has_bos(self.model.base), owner=principal.key_id
        )


def _prepare(
    request: Request, services: Services, principal: Principal, names: Sequence[str], texts: Sequence[str]
) -> tuple[list[Asked], list[ScoreRequest]]:
    check_texts(texts, services.settings, param="texts")
    services.engine.check_place(principal.key_id, here=True)  # what is refused costs nobody else's time
    models = [language_model(services, principal, name) for name in names]
    if len({model.base_id for model in models}) > 1:
        bases = ", ".join(dict.fromkeys(model.base_id for model in models))
        raise InvalidParameter(
            f"These models are of several base models ({bases}), which count other tokens: compare those of one alone.",
            param="baseline",
        )
    asked = [
        Asked(
            model, [text_windows(model.base, text, None if model.row is None else model.row.config) for text in texts]
        )
        for model in models
    ]
    return asked, admit(request, services, principal, [(one.model, one.request(principal)) for one in asked])


def _answers(
    texts: Sequence[str], asked: Sequence[Asked], scores: Sequence[Scores], *, baseline: int | None, seed: int
) -> list[PerplexityAnswer]:
    """The answer of every model but the baseline, against that where there is one; it is told by its number."""
    passages = [text_scores(texts, one.windows, found.nll) for one, found in zip(asked, scores, strict=True)]
    model, scored = (None, None) if baseline is None else (asked[baseline].model, passages[baseline])
    return [
        _answer(one.model, evaluate.report(passages[number], scored, seed=seed), model)
        for number, one in enumerate(asked)
        if number != baseline
    ]


def _answer(model: ResolvedModel, report: PerplexityReport, baseline: ResolvedModel | None) -> PerplexityAnswer:
    compared = None
    if report.baseline is not None and baseline is not None:
        compared = ComparedModel(model=baseline.asked, digest=baseline.digest, **report.baseline.model_dump())
    return PerplexityAnswer(
        **report.model_dump(exclude={"baseline"}), model=model.asked, digest=model.digest, baseline=compared
    )
