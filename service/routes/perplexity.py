"""`POST /v1/perplexity`: how well a model predicts texts, with standard errors, beside a second model if asked.

A text is tokenised as BOS + text and cut into consecutive windows of the context, each with BOS, so that every token
is scored once (METHODS section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from registry import evaluate
from registry.errors import InvalidParameter, TooLarge
from registry.likelihood import windows
from registry.spec import PassageScore
from service.auth import Caller, Principal
from service.engine import ScoreRequest, Scores
from service.routes.generation import finish
from service.routes.resolve import ResolvedModel, resolve_model
from service.routes.state import State
from service.routes.tokens import check_text
from service.schemas import ComparedModel, PerplexityAnswer, PerplexityRequest

if TYPE_CHECKING:
    from service.runtime import Runtime

router = APIRouter(tags=["inference"])


@router.post("/v1/perplexity")
async def perplexity(
    request: Request, response: Response, body: PerplexityRequest, runtime: State, who: Caller
) -> PerplexityAnswer:
    """Perplexity = exp(sum NLL / sum tokens); `standard_error` is that of `mean_nll` over texts, a lower bound."""
    models, requests = await run_in_threadpool(_prepare, runtime, who, body)
    tickets = await run_in_threadpool(runtime.engine.submit_all, requests)
    scores = await finish(request, tickets)
    response.headers["x-soup-digest"] = models[0].fingerprint
    return await run_in_threadpool(_answer, body, models, requests, scores)


def check_texts(texts: Sequence[str], runtime: Runtime, *, param: str) -> None:
    """Raises InvalidParameter for an empty text, TooLarge for too many or one that is too long."""
    limit = runtime.settings.max_texts
    if len(texts) > limit:
        raise TooLarge(f"'{param}' holds {len(texts)} texts; at most {limit} are taken.", param=param)
    for number, text in enumerate(texts):
        if not text:
            raise InvalidParameter(f"Text {number} of '{param}' is empty.", param=param)
        check_text(text, runtime, param=f"{param}.{number}")


def _prepare(
    runtime: Runtime, who: Principal, body: PerplexityRequest
) -> tuple[list[ResolvedModel], list[ScoreRequest]]:
    check_texts(body.texts, runtime, param="texts")
    names = [body.model] if body.baseline is None else [body.model, body.baseline]
    models = [resolve_model(runtime, who, name) for name in names]
    return models, [_score_request(model, body.texts) for model in models]


def _score_request(model: ResolvedModel, texts: Sequence[str]) -> ScoreRequest:
    """All windows of all texts, text after text."""
    cut = [window for text in texts for window in _windows(model, text)]
    bos = model.base.entry.bos and model.base.bos_id is not None
    return ScoreRequest(
        model.base_id, tuple(tuple(window) for window in cut), adapter=model.handle, pooled=frozenset(), bos=bos
    )


def _windows(model: ResolvedModel, text: str) -> list[list[int]]:
    base = model.base
    return windows(
        base.tokenize(text, bos=False),
        context=base.shape.context,
        bos_id=base.bos_id if base.entry.bos else None,
    )


def _passages(model: ResolvedModel, texts: Sequence[str], scores: Scores) -> list[PassageScore]:
    """Window scores gathered by text. The first token of a window is given, all others are scored."""
    found: list[PassageScore] = []
    at = 0
    for text in texts:
        own = _windows(model, text)
        nll = sum(scores.nll[at : at + len(own)])
        at += len(own)
        tokens = sum(len(window) - 1 for window in own)
        found.append(PassageScore(nll=nll, tokens=tokens, bytes=len(text.encode()), windows=len(own)))
    return found


def _answer(
    body: PerplexityRequest, models: Sequence[ResolvedModel], requests: Sequence[ScoreRequest], scores: Sequence[Scores]
) -> PerplexityAnswer:
    passages = [_passages(model, body.texts, found) for model, found in zip(models, scores, strict=True)]
    report = evaluate.report(passages[0], passages[1] if len(passages) > 1 else None, seed=body.seed)
    compared = None
    if report.baseline is not None and body.baseline is not None:
        compared = ComparedModel(model=body.baseline, digest=models[1].digest, **report.baseline.model_dump())
    return PerplexityAnswer(
        **report.model_dump(exclude={"baseline"}), model=body.model, digest=models[0].digest, baseline=compared
    )
