"""`POST /v1/perplexity`: how well a model predicts texts, with standard errors, beside a second model if asked.

A text is tokenised as BOS + text and cut into consecutive windows of the context, each with BOS, so that every token
is scored once (docs/explanation/methods.md#perplexity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from registry import evaluate
from registry.likelihood import text_scores
from service.engine import ScoreRequest, Scores
from service.engine.texts import Windows, has_bos, text_windows
from service.http.app_parts import AppParts
from service.http.auth import ModelUser
from service.http.bodies import CheckedRoute
from service.http.body_limits import TEXTS, takes
from service.http.inference_limits import check_texts
from service.http.metering import admit, answer_headers
from service.http.named_models import ResolvedModel, language_model
from service.http.schemas.perplexity import ComparedModel, PerplexityAnswer, PerplexityRequest
from service.http.streaming import finish
from service.http.thread_turns import in_thread
from service.keys import Principal
from service.parts import Parts

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/perplexity")
@takes(TEXTS)
async def perplexity(
    request: Request, response: Response, body: PerplexityRequest, parts: AppParts, who: ModelUser
) -> PerplexityAnswer:
    """Perplexity = exp(sum NLL / sum tokens); `standard_error` is that of `mean_nll` over texts, a lower bound."""
    asked, requests = await in_thread(_prepare, request, parts, who, body)
    scores = await finish(request, parts.engine, requests)
    response.headers.update(answer_headers(request, asked[0].model))
    return await in_thread(_answer, body, asked, scores)


@dataclass(frozen=True)
class Asked:
    """The texts as one model's tokenizer cuts them: the windows of each text."""

    model: ResolvedModel
    windows: list[Windows]

    def request(self, who: Principal) -> ScoreRequest:
        """All windows of all texts as one request, text after text."""
        flat = tuple(window for own in self.windows for window in own)
        return ScoreRequest(
            self.model.base_id, flat, adapter=self.model.handle, bos=has_bos(self.model.base), owner=who.key_id
        )


def _prepare(
    request: Request, parts: Parts, who: Principal, body: PerplexityRequest
) -> tuple[list[Asked], list[ScoreRequest]]:
    check_texts(body.texts, parts.settings, param="texts")
    names = [body.model] if body.baseline is None else [body.model, body.baseline]
    parts.engine.check_place(who.key_id)  # what is refused costs nobody else's time
    models = [language_model(parts, who, name) for name in names]
    asked = [
        Asked(
            model,
            [text_windows(model.base, text, None if model.row is None else model.row.config) for text in body.texts],
        )
        for model in models
    ]
    return asked, admit(request, parts, who, [(one.model, one.request(who)) for one in asked])


def _answer(body: PerplexityRequest, asked: Sequence[Asked], scores: Sequence[Scores]) -> PerplexityAnswer:
    passages = [text_scores(body.texts, one.windows, found.nll) for one, found in zip(asked, scores, strict=True)]
    report = evaluate.report(passages[0], passages[1] if len(passages) > 1 else None, seed=body.seed)
    compared = None
    if report.baseline is not None and body.baseline is not None:
        compared = ComparedModel(model=body.baseline, digest=asked[1].model.digest, **report.baseline.model_dump())
    return PerplexityAnswer(
        **report.model_dump(exclude={"baseline"}), model=body.model, digest=asked[0].model.digest, baseline=compared
    )
